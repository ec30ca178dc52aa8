//! QEMU's command line.

use std::path::Path;
use std::process::Command;

use super::Builder;
use crate::host::Namespace;

/// QEMU version; `make lab` unpacks both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qemu {
    /// The newest version in Debian.
    Newest,
    /// Version 7.2, from Debian 12.
    V7_2,
}

impl Qemu {
    fn folder(self) -> &'static str {
        match self {
            Self::Newest => "qemu",
            Self::V7_2 => "qemu-7.2",
        }
    }
}

/// QEMU machine type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// PCI Express, with an optional IOMMU.
    Q35,
    /// Conventional PCI.
    Pc,
}

/// Mode of the guest's Intel IOMMU; needs [`Machine::Q35`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iommu {
    /// No IOMMU.
    Off,
    /// Every device reaches only what its driver has mapped.
    Translated,
    /// Devices of kernel drivers, and devices without a driver, see the guest's memory untranslated; VFIO maps
    /// memory itself.
    Passthrough,
}

/// Destination of the guest's serial console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Console {
    /// A file; commands go through the agent.
    Agent,
    /// The terminal of this process.
    Terminal,
}

impl Builder {
    /// Builds QEMU's command line, run inside `namespace` if there is one.
    pub(super) fn command(
        &self,
        lab: &Path,
        folder: &Path,
        namespace: Option<&Namespace>,
        console: Console,
    ) -> Command {
        let qemu = lab.join(self.qemu.folder());
        let kvm = std::env::var_os("RINGPASS_LAB_KVM").is_some_and(|value| value == "1");
        let machine = match self.machine {
            Machine::Q35 => "q35,memory-backend=memory",
            Machine::Pc => "pc,memory-backend=memory",
        };
        let memory = self.memory;
        // The last four options save a second of self-tests and calibration.
        let mut kernel =
            "console=ttyS0 quiet panic=-1 cryptomgr.notests random.trust_cpu=on tsc=reliable no_timer_check".to_owned();
        // Queues that drop frames only when they are full. The default (fq_codel) also drops them when a guest stands still for a
        // moment, as it does on a busy machine.
        kernel += " sysctl.net.core.default_qdisc=pfifo_fast";
        match self.iommu {
            Iommu::Off => {}
            Iommu::Translated => kernel += " intel_iommu=on",
            Iommu::Passthrough => kernel += " intel_iommu=on iommu=pt",
        }
        // A killed test takes its guest with it (`--pdeathsig`). Peers of any user may use QEMU's sockets
        // (`umask 0`).
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "sh", "-c", "umask 0; exec \"$@\"", "sh"]);
        if let Some(namespace) = namespace {
            command.args(["ip", "netns", "exec", &namespace.0]);
        }
        command.env("QEMU_MODULE_DIR", qemu.join("modules"));
        command.arg(qemu.join("ld-linux-x86-64.so.2")).arg("--library-path").arg(qemu.join("lib"));
        command.arg(qemu.join("qemu-system-x86_64")).arg("-L").arg(qemu.join("share"));
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none"]);
        command.args([
            "-accel",
            if kvm { "kvm,kernel-irqchip=split" } else { "tcg" },
            "-cpu",
            "max",
            "-machine",
            machine,
        ]);
        // Leaves room for two memory devices to be hot-plugged.
        let most = memory + 1024;
        command.args(["-m", &format!("{memory}M,slots=2,maxmem={most}M"), "-smp", &self.cpus.to_string()]);
        command.args(["-object", &format!("memory-backend-memfd,id=memory,size={memory}M,share=on")]);
        command.arg("-kernel").arg(lab.join("vmlinux")).arg("-initrd").arg(folder.join("initrd"));
        command.args(["-append", &kernel]);
        if self.iommu != Iommu::Off {
            command.args(["-device", "intel-iommu,intremap=on,caching-mode=on"]);
        }
        match console {
            Console::Agent => {
                command.arg("-serial").arg(format!("file:{}", folder.join("console").display()));
                command.args(["-chardev", "stdio,id=agent,signal=off", "-device", "virtio-serial-pci,addr=1e"]);
                command.args(["-device", "virtserialport,chardev=agent,nr=1"]);
                let monitor = folder.join("monitor");
                command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", monitor.display()));
            }
            // Ctrl-A X ends QEMU; Ctrl-C goes to the guest.
            Console::Terminal => _ = command.args(["-serial", "mon:stdio"]),
        }
        for device in &self.devices {
            command.args(["-device", device]);
        }
        for (number, nic) in self.nics.iter().enumerate() {
            command.args(nic.arguments(number, self.qemu));
        }
        command.args(&self.arguments);
        command
    }
}
