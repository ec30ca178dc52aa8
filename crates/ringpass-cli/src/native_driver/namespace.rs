//! A mount namespace in which cards appear as PCI devices that are bound to `uio_pci_generic`, as they do where the
//! kernel's module of that name has them (Linux, driver-api/uio-howto).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use nix::sched::{CloneFlags, unshare};
use ringpass::Error;
use ringpass_memory::ForeignMemory;
use ringpass_models::ixgbe::{Card, PolledFunction};
use ringpass_pci::PciDevice;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};

use super::memory::Inode;

/// A card as a driver sees it.
pub(super) struct Presented {
    pub(super) address: String,
    pub(super) function: PolledFunction,
    /// The file of BAR 0.
    pub(super) registers: Inode,
}

const PCI_DEVICES: &str = "/sys/bus/pci/devices";
const CLASSES: &str = "/sys/class";
const NODES: &str = "/dev";
/// The bus that the cards are on, and the number of the first one's uio device.
const BUS: &str = "0000:f0";
const FIRST_UIO: usize = 900;
/// An address for BAR 0, which nothing uses: drivers map the file `resource0`.
const BAR_ADDRESS: usize = 0xf000_0000;

/// A command that was started, and the cards in its view.
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) cards: Vec<Presented>,
    /// Link of the namespace in `/proc/PID/ns`.
    pub(super) namespace: PathBuf,
}

/// Starts a command in a namespace of its own with the cards.
pub(super) fn start(cards: &[Arc<Card>], mut command: Command) -> Result<Started, Error> {
    if cards.len() > 32 {
        return Err(Error::Config(format!("{} cards for a command; a PCI bus has 32 devices", cards.len())));
    }
    let cards = cards.to_vec();
    // On a thread: the namespace is that of the thread, and of the command that it starts.
    let thread = std::thread::Builder::new().name("namespace".into()).spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).map_err(|errno| {
            Error::os("a view of the system with the cards, for the command (run as root)", io::Error::from(errno))
        })?;
        let cards = present(&cards)?;
        let namespace = fs::read_link("/proc/thread-self/ns/mnt");
        let namespace = namespace.map_err(|source| Error::os("/proc, in which drivers are found", source))?;
        let child = command.spawn();
        let program = command.get_program().display();
        let child = child.map_err(|source| Error::file(format!("starting {program}"), source))?;
        Ok(Started { child, cards, namespace })
    });
    let thread = thread.map_err(|source| Error::os("a thread", source))?;
    thread.join().map_err(|_| Error::Fault("preparing the command's view failed; see above".into()))?
}

/// Makes the cards appear in the thread's namespace.
fn present(cards: &[Arc<Card>]) -> Result<Vec<Presented>, Error> {
    let what = |what: &'static str| move |source: io::Error| Error::os(what, source);
    // Nothing of what is mounted from here on is to appear anywhere else.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .map_err(|errno| Error::os("a private view of the system", errno))?;
    overlay(Path::new(PCI_DEVICES)).map_err(what("/sys/bus/pci/devices with the cards"))?;
    overlay(Path::new(CLASSES)).map_err(what("/sys/class with the cards"))?;
    overlay(Path::new(NODES)).map_err(what("/dev with the cards"))?;
    let mut presented = Vec::new();
    for (number, card) in cards.iter().enumerate() {
        let address = format!("{BUS}:{number:02x}.0");
        presented.push(device(&address, FIRST_UIO + number, card).map_err(what("files of a card"))??);
    }
    Ok(presented)
}

/// Replaces a folder by a new one, with the same content, in which files can be made.
fn overlay(folder: &Path) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let original = match entry.file_type()? {
            kind if kind.is_symlink() => Original::Link(fs::read_link(entry.path())?),
            kind => {
                let opened =
                    rustix::fs::open(entry.path(), OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
                Original::Mounted { is_folder: kind.is_dir(), file: opened? }
            }
        };
        entries.push((entry.file_name(), original));
    }
    mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID, c"mode=755")?;
    for (name, original) in entries {
        let path = folder.join(name);
        match original {
            // Its target may be relative: that leads to the same place from here.
            Original::Link(target) => symlink(target, path)?,
            Original::Mounted { is_folder, file } => {
                if is_folder {
                    fs::create_dir(&path)?
                } else {
                    drop(File::create(&path)?)
                }
                mount_bind_recursive(format!("/proc/self/fd/{}", file.as_raw_fd()), path)?;
            }
        }
    }
    Ok(())
}

/// An entry of a folder that is replaced.
enum Original {
    Link(PathBuf),
    Mounted { is_folder: bool, file: OwnedFd },
}

/// Makes the files of a card: its folder in sysfs with registers and configuration space, and its uio device.
fn device(address: &str, uio: usize, card: &Arc<Card>) -> io::Result<Result<Presented, Error>> {
    let id = card.id();
    let folder = Path::new(PCI_DEVICES).join(address);
    let name = format!("uio{uio}");
    let driver = folder.join("uio_pci_generic");
    fs::create_dir_all(folder.join("uio").join(&name))?;
    fs::create_dir(&driver)?;
    for file in ["bind", "unbind", "new_id"] {
        fs::write(driver.join(file), "")?;
    }
    // With a slash, behind which DPDK looks for the name.
    symlink("./uio_pci_generic", folder.join("driver"))?;
    let bar_end = BAR_ADDRESS + PolledFunction::BAR_SIZE - 1;
    let bar = format!("{BAR_ADDRESS:#018x} {bar_end:#018x} 0x0000000000040200\n");
    let no_bars = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n".repeat(6);
    for (file, text) in [
        ("vendor", format!("{:#06x}\n", id.vendor)),
        ("device", format!("{:#06x}\n", id.device)),
        ("subsystem_vendor", format!("{:#06x}\n", id.vendor)),
        ("subsystem_device", "0x000c\n".into()),
        ("class", "0x020000\n".into()),
        ("revision", "0x01\n".into()),
        ("irq", "0\n".into()),
        ("numa_node", "-1\n".into()),
        ("enable", "1\n".into()),
        ("resource", bar + &no_bars),
    ] {
        fs::write(folder.join(file), text)?;
    }
    let memory = |file: &str, len: usize| {
        let file = File::options().read(true).write(true).create_new(true).open(folder.join(file))?;
        file.set_len(len as u64)?;
        io::Result::Ok(file)
    };
    let bar = memory("resource0", PolledFunction::BAR_SIZE)?;
    let config = memory("config", PolledFunction::CONFIG_SIZE)?;
    // A uio device says when there was an interrupt, so never.
    let class = Path::new(CLASSES).join("uio");
    fs::create_dir_all(class.join(&name))?;
    symlink(&folder, class.join(&name).join("device"))?;
    fs::write(class.join(&name).join("name"), "uio_pci_generic\n")?;
    mknodat(CWD, Path::new(NODES).join(&name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let registers = Inode::of(&bar.metadata()?);
    let map = |file: &File, len| ForeignMemory::map(file.as_fd(), 0, len).map_err(Error::Memory);
    Ok(map(&bar, PolledFunction::BAR_SIZE).and_then(|bar| {
        let config = map(&config, PolledFunction::CONFIG_SIZE)?;
        let function = PolledFunction::new(card.clone(), bar, config);
        Ok(Presented { address: address.into(), function, registers })
    }))
}
