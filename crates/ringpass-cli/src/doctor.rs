//! The subcommand `ringpass doctor`: checks what this machine offers, and prints a remedy for what is missing.

use std::fs::{self, OpenOptions};
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use ringpass::{Config, Error, PageSize, drivers, open};
use ringpass_evpn::check as evpn_check;
use ringpass_memory::huge_pages_free;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::json;

use crate::stats::print_line;
use ringpass::cards::{self, offer};

/// Check what this machine offers, and print the remedy for what is missing
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print a JSON object for each check
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass doctor
  ringpass doctor --json | jq -r 'select(.ok == false) | .remedy'";

/// Subject of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Category {
    /// Nothing works without it.
    Software,
    /// Interfaces of the kernel.
    Kernel,
    /// Network cards.
    Cards,
    /// FRR and the devices through which a switch knows of other hosts' stations. Checked if there is such a device.
    Evpn,
    /// Optional, but without it the program is slower or measures less accurately.
    Speed,
}

impl Category {
    fn name(self) -> &'static str {
        match self {
            Self::Software => "software ports",
            Self::Kernel => "kernel interfaces",
            Self::Cards => "network cards",
            Self::Evpn => "EVPN",
            Self::Speed => "speed",
        }
    }
}

struct Check {
    name: String,
    category: Category,
    ok: bool,
    found: String,
    /// Command or advice that fixes it.
    remedy: String,
}

fn check(category: Category, name: &str, ok: bool, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name: name.into(), category, ok, found: found.into(), remedy: remedy.into() }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let mut checks = vec![
        software(),
        tun(),
        xdp(),
        root(),
        supported(),
        huge_2m(),
        memlock(),
        iommu(),
        vfio(),
        cpus(),
        isolated(),
        huge_1g(),
        flag("constant_tsc", "cycle counts would depend on the clock speed"),
        flag("avx2", "packets are handled by narrower instructions"),
    ];
    checks.extend(evpn());
    checks.extend(cards::all().iter().filter_map(|card| virtio(&card.address)));
    for check in &checks {
        if args.json {
            let Check { name, category, ok, found, remedy } = check;
            let remedy = (!ok).then_some(remedy);
            let category = category.name();
            print_line(
                &json!({"event": "check", "name": name, "for": category, "ok": ok, "found": found, "remedy": remedy})
                    .to_string(),
            );
        } else {
            let mark = if check.ok { "ok     " } else { "missing" };
            print_line(&format!("{mark}  {:<17}  {:<18}  {}", check.category.name(), check.name, check.found));
            if !check.ok {
                print_line(&format!("{:>9}to mend it: {}", "", check.remedy));
            }
        }
    }
    if !args.json {
        print_line("");
        for category in [Category::Software, Category::Kernel, Category::Cards, Category::Evpn, Category::Speed] {
            if !checks.iter().any(|check| check.category == category) {
                continue;
            }
            let missing: Vec<_> = checks
                .iter()
                .filter(|check| check.category == category && !check.ok)
                .map(|check| &*check.name)
                .collect();
            let verdict =
                if missing.is_empty() { "all there".into() } else { format!("missing: {}", missing.join(", ")) };
            print_line(&format!("{:<17}  {verdict}", category.name()));
        }
    }
    match checks.iter().find(|check| check.category == Category::Software && !check.ok) {
        Some(check) => Err(Error::Unsupported(format!("{}: {}; {}", check.name, check.found, check.remedy))),
        None => Ok(()),
    }
}

/// Opens the driver on a software card, as `demo` does.
fn software() -> Check {
    let config = Config { hugepages: Some(PageSize::Ordinary), ..Default::default() };
    let name = "driver on a model";
    match open(["model:null"], &config) {
        Ok(_) => check(Category::Software, name, true, "opens", ""),
        Err(error) => check(Category::Software, name, false, error.to_string(), "free some memory and try again"),
    }
}

fn tun() -> Check {
    let path = "/dev/net/tun";
    let (found, remedy) = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => return check(Category::Kernel, "TAP", true, path, ""),
        Err(error) if Path::new(path).exists() => (format!("{path}: {error}"), format!("sudo chmod 0666 {path}")),
        Err(error) => (format!("{path}: {error}"), "sudo modprobe tun".into()),
    };
    check(Category::Kernel, "TAP", false, found, remedy)
}

/// Checks whether `xdp:NAME` can be opened, without any interface.
fn xdp() -> Check {
    let (name, kind) = ("XDP sockets", SocketType::RAW);
    let no = |found: &str, remedy: &str| check(Category::Kernel, name, false, found, remedy);
    match socket_with(AddressFamily::XDP, kind, SocketFlags::CLOEXEC, None) {
        Ok(_) if has_capabilities(&[CAP_NET_ADMIN, CAP_BPF]) => {
            check(Category::Kernel, name, true, "the kernel has them, and this user may attach programs", "")
        }
        Ok(_) => no("this user may open them, but not attach programs (CAP_NET_ADMIN, CAP_BPF)", "sudo ringpass …"),
        Err(Errno::AFNOSUPPORT) => {
            no("the kernel has none", "a kernel with CONFIG_XDP_SOCKETS; until then, packet:NAME")
        }
        Err(Errno::PERM | Errno::ACCESS) => no("this user may not open them (CAP_NET_RAW)", "sudo ringpass …"),
        Err(error) => no(&error.to_string(), "packet:NAME does the same, more slowly"),
    }
}

/// Numbers of capabilities (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
const CAP_BPF: u32 = 39;

/// Returns whether this process has all of these capabilities.
fn has_capabilities(wanted: &[u32]) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    wanted.iter().all(|bit| effective & 1 << bit != 0)
}

/// Checks the devices of networks with EVPN, of which there are some, and whether FRR runs.
fn evpn() -> Vec<Check> {
    let networks = evpn_check::networks();
    let mut checks: Vec<_> = networks.iter().map(|&vni| network(vni)).collect();
    if !networks.is_empty() {
        let daemons = ["zebra", "bgpd"].map(|daemon| (daemon, runs(daemon)));
        let missing: Vec<_> = daemons.iter().filter(|(_, runs)| !runs).map(|(daemon, _)| *daemon).collect();
        let (ok, found) = match &missing[..] {
            [] => (true, "zebra and bgpd run".into()),
            missing => (false, format!("no {} runs", missing.join(", no "))),
        };
        let remedy = "sudo apt install frr; bgpd=yes in /etc/frr/daemons; sudo systemctl restart frr";
        checks.push(check(Category::Evpn, "FRR", ok, found, remedy));
    }
    checks
}

fn network(vni: u32) -> Check {
    let faults = evpn_check::faults(vni);
    let served = if evpn_check::is_served(vni) { "a switch has them open" } else { "no switch has them open" };
    let found = if faults.is_empty() { served.into() } else { faults.join("; ") };
    let remedy = "sudo ringpass evpn remove FILE; sudo ringpass evpn setup FILE";
    check(Category::Evpn, &format!("network {vni}"), faults.is_empty(), found, remedy)
}

/// Returns whether a process of this name runs.
fn runs(name: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let named = |path: std::path::PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name);
    processes.map(|entry| entry.path()).any(named)
}

fn root() -> Check {
    let user = nix::unistd::geteuid();
    check(Category::Kernel, "root", user.is_root(), format!("user id {user}"), "sudo ringpass …")
}

fn huge_2m() -> Check {
    // Enough for two ports with rings of 512 descriptors and their buffers.
    const ENOUGH: usize = 16;
    let (free, total) = huge_pages_free(PageSize::Huge2M);
    let (found, want) =
        (format!("{free} of {total} free, {ENOUGH} or more are good"), total - free.min(total) + 2 * ENOUGH);
    let remedy = format!("echo {want} | sudo tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    check(Category::Cards, "2 MiB pages", free >= ENOUGH, found, remedy)
}

fn huge_1g() -> Check {
    let (free, total) = huge_pages_free(PageSize::Huge1G);
    let file = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
    let remedy = if Path::new(file).exists() {
        format!("echo 1 | sudo tee {file}")
    } else {
        "another processor: this one has none (flag pdpe1gb)".into()
    };
    check(Category::Speed, "1 GiB pages", free > 0, format!("{free} of {total} free"), remedy)
}

fn memlock() -> Check {
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap_or((0, 0));
    let ok = nix::unistd::geteuid().is_root() || limit >= 64 << 20;
    let found = if limit == u64::MAX { "unlimited".into() } else { format!("{} KiB", limit >> 10) };
    let found = if nix::unistd::geteuid().is_root() { format!("{found} (root needs none)") } else { found };
    check(Category::Cards, "locked memory", ok, found, "ulimit -l unlimited (as root, or by /etc/security/limits.conf)")
}

fn supported() -> Check {
    let all = cards::all();
    let ours: Vec<_> = all.iter().filter(|card| drivers::supports(card.id).is_some()).collect();
    let by_vfio = ours.iter().filter(|card| ringpass_pci::is_bound(&card.address)).count();
    let (cards, some) = (all.len(), !ours.is_empty());
    let found = format!("{} of {cards} network cards, {by_vfio} through VFIO; 'ringpass list' shows them", ours.len());
    let remedy = format!("one of the {}; until then, model:PORT plays one", drivers::FAMILIES);
    check(Category::Cards, "cards", some, found, remedy)
}

/// Checks the features that the host offers to a virtio card.
fn virtio(address: &str) -> Option<Check> {
    let offer = offer::read_offer(address)?;
    let options: Vec<_> = offer.suggestions(cards::cpus()).iter().map(|suggestion| suggestion.qemu).collect();
    let remedy =
        format!("options of QEMU: {}; 'ringpass list' says what for, and how with libvirt", options.join("; "));
    Some(check(Category::Speed, address, options.is_empty(), offer.summary(), remedy))
}

fn iommu() -> Check {
    let groups = fs::read_dir("/sys/kernel/iommu_groups").map_or(0, |entries| entries.count());
    let described = ["DMAR", "IVRS"].map(|table| Path::new("/sys/firmware/acpi/tables").join(table).exists());
    let remedy = iommu_remedy(described, has_flag("hypervisor"));
    let found = if groups > 0 { format!("{groups} groups") } else { "none: cards reach all memory".into() };
    check(Category::Cards, "IOMMU", groups > 0, found, remedy)
}

/// Returns how to get an IOMMU where the kernel uses none. The firmware describes Intel's in the ACPI table
/// DMAR and AMD's in IVRS. The kernel uses AMD's unless told not to. Without either table nothing can be turned
/// on in the kernel.
fn iommu_remedy([intel, amd]: [bool; 2], virtual_machine: bool) -> String {
    if intel {
        return kernel_option("intel_iommu=on");
    }
    if amd {
        return "take amd_iommu=off and iommu=off off the kernel's command line, and reboot".into();
    }
    if virtual_machine {
        return "only the host of this virtual machine can offer one; QEMU: -machine q35,kernel-irqchip=split \
                -device intel-iommu,intremap=on,caching-mode=on (before the cards); libvirt: <iommu model='intel'><driver \
                intremap='on' caching_mode='on'/></iommu>; then intel_iommu=on for the kernel here"
            .into();
    }
    "turn on the IOMMU (VT-d, AMD-Vi) in the firmware's set-up".into()
}

fn vfio() -> Check {
    let path = "/dev/vfio/vfio";
    let there = Path::new(path).exists();
    check(
        Category::Cards,
        "VFIO",
        there,
        if there { path.into() } else { format!("no {path}") },
        "sudo modprobe vfio-pci",
    )
}

/// Returns the command that adds a kernel option, for Debian and its derivatives.
fn kernel_option(option: &str) -> String {
    format!("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{option} /' /etc/default/grub && sudo update-grub && sudo reboot")
}

fn cpuinfo(field: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let value = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == field)?.1;
    Some(value.trim().to_owned())
}

fn cpus() -> Check {
    let cpus = cards::cpus();
    check(
        Category::Speed,
        "CPUs",
        cpus > 1,
        format!("{cpus} for this process"),
        "taskset or a machine with two or more",
    )
}

fn isolated() -> Check {
    let list = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default();
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    isolation(list.trim(), count(online.trim()))
}

/// Checks the list of isolated CPUs on a machine with `cpus` CPUs.
fn isolation(list: &str, cpus: usize) -> Check {
    /// With fewer CPUs than this, an isolated one would be missed elsewhere.
    const ENOUGH: usize = 4;
    let (ok, found) = match list {
        "" if cpus < ENOUGH => (true, format!("none, and none to spare among {cpus}")),
        "" => (false, "none: other programs interrupt the workers".into()),
        list => (true, format!("CPUs {list}")),
    };
    let last = cpus.saturating_sub(1);
    let remedy = format!("{}; then --cpu {last}", kernel_option(&format!("isolcpus={last}")));
    check(Category::Speed, "isolated CPUs", ok, found, remedy)
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn count(list: &str) -> usize {
    let one = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    list.split(',').filter_map(one).sum()
}

/// Returns whether the CPU has a feature, by the kernel's name for it. `hypervisor` means that this is a
/// virtual machine (CPUID leaf 1, ECX bit 31).
fn has_flag(name: &str) -> bool {
    cpuinfo("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == name))
}

fn flag(name: &'static str, without: &str) -> Check {
    let there = has_flag(name);
    let found = if there { "the CPU has it".into() } else { format!("the CPU lacks it: {without}") };
    check(Category::Speed, name, there, found, "another processor, or another CPU model for this virtual machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_can_offer_an_iommu() {
        let host = iommu_remedy([false; 2], true);
        for word in ["only the host", "-device intel-iommu", "<iommu model='intel'>"] {
            assert!(host.contains(word), "{host}");
        }
        assert!(!host.contains("grub"), "{host}");
        assert!(iommu_remedy([false; 2], false).contains("firmware"));
        for virtual_machine in [false, true] {
            assert!(iommu_remedy([true, false], virtual_machine).contains("intel_iommu=on"));
            assert!(iommu_remedy([false, true], virtual_machine).contains("amd_iommu=off"));
        }
    }

    #[test]
    fn cpus_are_isolated_where_some_can_be_spared() {
        for cpus in 1..4 {
            assert!(isolation("", cpus).ok);
        }
        let check = isolation("", 4);
        assert!(
            !check.ok && check.remedy.contains("isolcpus=3") && check.remedy.ends_with("--cpu 3"),
            "{}",
            check.remedy
        );
        assert!(isolation("1-3", 4).ok);
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(["", "0", "0-1", "0-3,8,10-11", "x"].map(count), [0, 1, 2, 7, 0]);
    }
}
