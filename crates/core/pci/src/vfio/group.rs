//! VFIO groups: the smallest sets of devices that the IOMMU can isolate. Each group gets a container of its
//! own, and so its own mappings.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ringpass_memory::{ContiguousRange, DmaRegion, ForeignMemory};
use ringpass_port::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vfio_bindings::bindings::vfio::VFIO_GROUP_FLAGS_VIABLE;

use super::{info, is_bound, request};
use crate::sysfs::DEVICES;
use crate::{ForeignMaps, SysfsPci};

/// A group in a container of its own. Its devices hold it, so they are closed before it is dropped. The fields
/// are then dropped in order: group and container are closed, which removes all mappings from the IOMMU, and
/// only then is the memory released.
pub(super) struct Group {
    number: u32,
    group: OwnedFd,
    container: OwnedFd,
    /// Address ranges that the IOMMU can map, as first and last address; empty if the kernel does not report
    /// them.
    ranges: Vec<(u64, u64)>,
    /// Limit on locked memory in bytes, if there is one. It is read at the start because the sandbox forbids to
    /// query it.
    limit: Option<u64>,
    mapped: Mutex<Vec<Arc<DmaRegion>>>,
    foreign: ForeignMaps,
}

/// Groups of this process. The kernel lets a group be opened only once, and two devices may be in the same
/// group.
static GROUPS: Mutex<Vec<Weak<Group>>> = Mutex::new(Vec::new());

impl Group {
    /// Returns the group of the device at a PCI address, and opens it if necessary.
    pub(super) fn of(address: &str) -> Result<Arc<Self>, Error> {
        let number = number(address)?;
        let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        if let Some(group) = groups.iter().filter_map(Weak::upgrade).find(|group| group.number == number) {
            return Ok(group);
        }
        let group = Arc::new(Self::open(number, address)?);
        groups.push(Arc::downgrade(&group));
        Ok(group)
    }

    fn open(number: u32, address: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let what = format!("{address} through VFIO: {what}");
            move |source: io::Error| Error::os(what, source)
        };
        let group =
            open(Path::new("/dev/vfio").join(number.to_string())).map_err(|errno| refused(address, number, errno))?;
        if request::group_flags(&group).map_err(wrong("asking about its group"))? & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(not_viable(address, number));
        }
        let container = open("/dev/vfio/vfio".into()).map_err(|errno| wrong("/dev/vfio/vfio")(errno.into()))?;
        if !request::supported(&container).map_err(wrong("asking about the IOMMU"))? {
            let remedy = "load its driver: sudo modprobe vfio_iommu_type1";
            return Err(Error::Unsupported(format!(
                "{address} through VFIO: the kernel has no type 1 IOMMU; {remedy}"
            )));
        }
        request::set_container(&group, &container).map_err(wrong("a container for its group"))?;
        request::set_iommu(&container).map_err(|source| {
            let remedy = match Errno::from_io_error(&source) {
                Some(Errno::PERM) => {
                    " (without interrupt remapping: sudo modprobe vfio_iommu_type1 allow_unsafe_interrupts=1)"
                }
                _ => "",
            };
            wrong(&format!("turning on the IOMMU{remedy}"))(source)
        })?;
        let ranges = info::ranges(&request::iommu_info(&container).map_err(wrong("asking about the IOMMU"))?);
        let limit = raise_memlock_limit();
        Ok(Self { number, group, container, ranges, limit, mapped: Mutex::default(), foreign: ForeignMaps::default() })
    }

    /// Returns the number of the group, which is the name of its file in `/dev/vfio`.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Opens a device of the group.
    pub(super) fn device(&self, address: &str) -> Result<OwnedFd, Error> {
        let name = CString::new(address).map_err(|_| Error::Address(format!("{address:?} is not a PCI address")))?;
        request::device(&self.group, &name).map_err(|source| {
            let what = match Errno::from_io_error(&source) {
                Some(Errno::BUSY) => format!("{address} is driven by another program; end that one first"),
                _ => format!("{address} through VFIO: opening the device"),
            };
            Error::os(what, source)
        })
    }

    /// Lets the group's devices access a region, at the region's own DMA addresses, and nothing else.
    pub(super) fn map(&self, address: &str, region: &Arc<DmaRegion>) -> Result<(), Error> {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if mapped.iter().any(|other| Arc::ptr_eq(other, region)) {
            return Ok(());
        }
        let mut done = Vec::new();
        for ContiguousRange { iova, offset, len } in region.contiguous_ranges() {
            let result = if info::inside(&self.ranges, iova, len) {
                // SAFETY: a `DmaRegion` is memory that devices may write at any time, so no Rust code relies on
                // its contents. The region stays allocated while it is mapped: on success `self.mapped` keeps
                // it until the container is closed, on failure the loop below unmaps what was mapped, while the
                // caller still holds it.
                unsafe { request::map(&self.container, region.at(offset), iova, len) }
                    .map_err(|source| map_error(address, len, self.limit, source))
            } else {
                Err(self.outside(address, iova))
            };
            if let Err(error) = result {
                done.iter().for_each(|&(iova, len)| drop(request::unmap(&self.container, iova, len)));
                return Err(error);
            }
            done.push((iova, len));
        }
        mapped.push(region.clone());
        Ok(())
    }

    /// Lets the group's devices access memory of another process, at its addresses in this process.
    pub(super) fn map_foreign(&self, address: &str, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let (iova, len) = (memory.as_ptr() as u64, memory.mapped_len());
        self.foreign.add(memory, || {
            if !info::inside(&self.ranges, iova, len) {
                return Err(self.outside(address, iova));
            }
            // SAFETY: `ForeignMemory` may change at any time, so no Rust code relies on its contents.
            // `ForeignMaps::add` keeps it while it is mapped, that is until `unmap_foreign` or until the
            // container is closed.
            let mapped = unsafe { request::map(&self.container, memory.as_ptr(), iova, len) };
            mapped.map_err(|source| map_error(address, len, self.limit, source))
        })
    }

    /// Removes the mapping of another process's memory, after its last use.
    pub(super) fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        let (iova, len) = (memory.as_ptr() as u64, memory.mapped_len());
        self.foreign.remove(memory, || drop(request::unmap(&self.container, iova, len)));
    }

    fn outside(&self, address: &str, iova: u64) -> Error {
        let last = self.ranges.iter().map(|&(_, last)| last).max().unwrap_or(0);
        Error::Unsupported(format!(
            "{address} through VFIO: its IOMMU takes addresses up to {last:#x} without some gaps, the memory lies at \
             {iova:#x}; use the card as root through another driver than vfio-pci"
        ))
    }
}

fn open(path: PathBuf) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the number of the IOMMU group of the device at a PCI address, if it is behind an IOMMU.
pub fn group_of(address: &str) -> Option<u32> {
    let link = fs::read_link(Path::new(DEVICES).join(address).join("iommu_group")).ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

fn number(address: &str) -> Result<u32, Error> {
    group_of(address).ok_or_else(|| {
        Error::Unsupported(format!(
            "{address} is behind no IOMMU; turn it on: intel_iommu=on on the kernel's command line, or AMD-Vi in the \
             firmware's set-up; or use the card as root, bound to no driver"
        ))
    })
}

/// Returns the error for a group's file that could not be opened.
fn refused(address: &str, number: u32, errno: Errno) -> Error {
    let path = format!("/dev/vfio/{number}");
    let text = match errno {
        Errno::NOENT => {
            let sysfs = format!("{DEVICES}/{address}");
            format!(
                "{address} through VFIO: no {path}; bind the card: sudo modprobe vfio-pci, then \
                 echo vfio-pci | sudo tee {sysfs}/driver_override && echo {address} | sudo tee {sysfs}/driver/unbind; \
                 echo {address} | sudo tee /sys/bus/pci/drivers_probe"
            )
        }
        Errno::ACCESS | Errno::PERM => {
            format!("{address} through VFIO: {path} belongs to another user; sudo chown $USER {path}")
        }
        Errno::BUSY => format!("{address}: {path} is used by another program; end that one first"),
        errno => format!("{address} through VFIO: {path}: {}", io::Error::from(errno)),
    };
    Error::refused(errno, text)
}

/// Returns the error for a group that is not viable. It is viable when each of its devices is bound to VFIO or
/// to no driver.
fn not_viable(address: &str, number: u32) -> Error {
    let members = fs::read_dir(format!("/sys/kernel/iommu_groups/{number}/devices")).into_iter().flatten().flatten();
    let members = members.filter_map(|member| member.file_name().into_string().ok());
    let kept = members.filter(|member| !is_bound(member)).filter_map(|member| {
        let driver = SysfsPci::kernel_driver(&member)?;
        Some(format!("{member} ({driver})"))
    });
    let kept: Vec<String> = kept.collect();
    Error::Busy(format!(
        "{address} through VFIO: the IOMMU cannot tell it from other devices of its group {number}, which the kernel \
         uses: {}; bind these to vfio-pci too, or put the card into another slot",
        kept.join(", ")
    ))
}

/// Raises the limit on locked memory if possible, and returns the limit. Root may lock any amount; but guests
/// bring their memory after root's privileges are dropped, so the limit is lifted before.
fn raise_memlock_limit() -> Option<u64> {
    // This fails for an ordinary user, whose limit stays.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    getrlimit(Resource::Memlock).current
}

fn map_error(address: &str, len: usize, limit: Option<u64>, source: io::Error) -> Error {
    let what = match Errno::from_io_error(&source) {
        Some(Errno::NOMEM) => {
            let limit = match limit {
                Some(limit) => format!("the limit is {} KiB for all together", limit >> 10),
                None => "there is no limit".into(),
            };
            format!(
                "{address} through VFIO: locking {} KiB for the card, {limit}; raise it: ulimit -l unlimited (as root, \
                 or by /etc/security/limits.conf)",
                len >> 10
            )
        }
        Some(Errno::NOSPC) => format!(
            "{address} through VFIO: more mappings than the kernel allows; raise it: echo 1000000 | sudo tee \
             /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
        ),
        _ => format!("{address} through VFIO: mapping {} KiB for the card", len >> 10),
    };
    Error::os(what, source)
}
