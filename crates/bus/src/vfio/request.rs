//! The requests of VFIO that are used here, each a safe function (linux/vfio.h).

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use ringpass_peer::Waiter;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_irq_info, vfio_irq_set, vfio_region_info,
};

/// A request with its argument: a number, or the address of a structure that begins with its size.
struct Request {
    /// Counted from `VFIO_BASE`.
    number: u32,
    argument: *mut c_void,
}

// SAFETY: the functions below give each request the argument that the kernel's header names for it.
unsafe impl Ioctl for Request {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    /// `_IO(VFIO_TYPE, VFIO_BASE + number)`.
    fn opcode(&self) -> Opcode {
        Opcode::from(u32::from(b';') << 8 | (100 + self.number))
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> rustix::io::Result<IoctlOutput> {
        Ok(output)
    }
}

/// A request that takes a number.
fn number(file: impl AsFd, number: u32, argument: usize) -> io::Result<IoctlOutput> {
    let argument = std::ptr::without_provenance_mut(argument);
    // SAFETY: called for requests whose argument the kernel does not take for an address.
    Ok(unsafe { ioctl(file, Request { number, argument }) }?)
}

/// A request that takes a structure, which begins with its size.
///
/// # Safety
/// `T` is the request's structure, and what addresses are in it are good for what the request does.
unsafe fn structure<T: ?Sized>(file: impl AsFd, number: u32, argument: &mut T) -> io::Result<IoctlOutput> {
    let argument = std::ptr::from_mut(argument).cast();
    // SAFETY: the kernel reads and writes no more than the size that the structure begins with; the caller's promise.
    Ok(unsafe { ioctl(file, Request { number, argument }) }?)
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Whether a container speaks the version of this header, and has the IOMMU backend that is used here.
pub(super) fn supported(container: impl AsFd) -> io::Result<bool> {
    let version = number(&container, 0, 0)?;
    Ok(version == VFIO_API_VERSION as IoctlOutput && number(container, 1, VFIO_TYPE1v2_IOMMU as usize)? > 0)
}

/// `VFIO_GROUP_FLAGS_…`.
pub(super) fn group_flags(group: impl AsFd) -> io::Result<u32> {
    let mut status = vfio_group_status { argsz: size::<vfio_group_status>(), flags: 0 };
    // SAFETY: this structure; there are no addresses in it.
    unsafe { structure(group, 3, &mut status) }?;
    Ok(status.flags)
}

/// Puts a group into a container.
pub(super) fn set_container(group: impl AsFd, container: impl AsFd) -> io::Result<()> {
    let mut descriptor = container.as_fd().as_raw_fd();
    // SAFETY: this one takes the address of a descriptor, which is read.
    unsafe { structure(group, 4, &mut descriptor) }.map(drop)
}

/// Turns on the IOMMU for the groups of a container.
pub(super) fn set_iommu(container: impl AsFd) -> io::Result<()> {
    number(container, 2, VFIO_TYPE1v2_IOMMU as usize).map(drop)
}

/// A device of a group, by its PCI address.
pub(super) fn device(group: impl AsFd, address: &CStr) -> io::Result<OwnedFd> {
    let argument = address.as_ptr().cast_mut().cast();
    // SAFETY: this one takes the address of a C string, which is read.
    let descriptor = unsafe { ioctl(group, Request { number: 6, argument }) }?;
    // SAFETY: the kernel has just opened it for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `VFIO_DEVICE_FLAGS_…`.
pub(super) fn device_flags(device: impl AsFd) -> io::Result<u32> {
    let mut info = vfio_device_info { argsz: size::<vfio_device_info>(), ..Default::default() };
    // SAFETY: this structure; there are no addresses in it.
    unsafe { structure(device, 7, &mut info) }?;
    Ok(info.flags)
}

/// Where a region (a BAR, the configuration space) lies in the device's file.
pub(super) fn region(device: impl AsFd, index: u32) -> io::Result<vfio_region_info> {
    let mut info = vfio_region_info { argsz: size::<vfio_region_info>(), index, ..Default::default() };
    // SAFETY: this structure; there are no addresses in it.
    unsafe { structure(device, 8, &mut info) }?;
    Ok(info)
}

/// How many vectors the device has of a kind of interrupt.
pub(super) fn vectors(device: impl AsFd, index: u32) -> io::Result<usize> {
    let mut info = vfio_irq_info { argsz: size::<vfio_irq_info>(), index, ..Default::default() };
    // SAFETY: this structure; there are no addresses in it.
    unsafe { structure(device, 9, &mut info) }?;
    Ok(info.count as usize)
}

/// Has vectors from the first on write to these eventfds.
pub(super) fn set_vectors(device: impl AsFd, index: u32, events: &[Waiter]) -> io::Result<()> {
    let head = vfio_irq_set {
        argsz: size::<vfio_irq_set>() + 4 * events.len() as u32,
        flags: VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
        index,
        start: 0,
        count: events.len() as u32,
        ..Default::default()
    };
    // The descriptors follow the structure.
    let words = [head.argsz, head.flags, head.index, head.start, head.count];
    let mut words: Vec<u32> =
        words.into_iter().chain(events.iter().map(|event| event.event().as_raw_fd() as u32)).collect();
    // SAFETY: the structure as five words, then as many descriptors as it says; it is read.
    unsafe { structure(device, 10, &mut words[..]) }.map(drop)
}

/// Resets the device.
pub(super) fn reset(device: impl AsFd) -> io::Result<()> {
    number(device, 11, 0).map(drop)
}

/// What the kernel says of a container's IOMMU: `vfio_iommu_type1_info` and its chain of capabilities.
pub(super) fn iommu_info(container: impl AsFd) -> io::Result<Vec<u8>> {
    // As 64-bit words, for the structure's alignment.
    let mut buffer = [0u64; 512];
    buffer[0] = size_of_val(&buffer) as u64;
    // SAFETY: the structure begins with the size of the whole buffer.
    unsafe { structure(container, 12, &mut buffer) }?;
    Ok(buffer.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// Shows devices of a container `len` bytes of this process's memory, for reading and writing, at `iova`.
///
/// # Safety
/// Nothing else may rely on what is in that memory, until it is [unmapped](unmap) or the container is closed; nor may it
/// be given back to the kernel before.
pub(super) unsafe fn map(container: impl AsFd, memory: *mut u8, iova: u64, len: usize) -> io::Result<()> {
    let mut map = vfio_iommu_type1_dma_map {
        argsz: size::<vfio_iommu_type1_dma_map>(),
        flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: memory as u64,
        iova,
        size: len as u64,
    };
    // SAFETY: this structure; the memory in it is the devices', as the caller promises.
    unsafe { structure(container, 13, &mut map) }.map(drop)
}

/// Takes a mapping back.
pub(super) fn unmap(container: impl AsFd, iova: u64, len: usize) -> io::Result<()> {
    let argsz = size::<vfio_iommu_type1_dma_unmap>();
    let mut unmap = vfio_iommu_type1_dma_unmap { argsz, iova, size: len as u64, ..Default::default() };
    // SAFETY: this structure; there are no addresses of this process in it.
    unsafe { structure(container, 14, &mut unmap) }.map(drop)
}
