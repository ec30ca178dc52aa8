//! Wrappers of the VFIO ioctls that are used here (linux/vfio.h). All are safe to call except [`map`].

use std::ffi::{CStr, c_void};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use ringpass_ipc::EventWaiter;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IRQ_SET_ACTION_TRIGGER,
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_irq_info, vfio_irq_set, vfio_region_info,
};

/// An ioctl with its argument: a number, or the address of a structure that begins with its size.
struct Request {
    /// Number of the ioctl, relative to `VFIO_BASE`.
    number: u32,
    argument: *mut c_void,
}

// SAFETY: `opcode` and `as_ptr` pass on what the constructor of the request has chosen. Requests are made only
// in `number`, `structure` and `device`, which pair each opcode with the argument that linux/vfio.h documents
// for it. The output is the ioctl's plain return value.
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

/// Issues an ioctl that takes a number.
fn number(file: impl AsFd, number: u32, argument: usize) -> io::Result<IoctlOutput> {
    let argument = std::ptr::without_provenance_mut(argument);
    // SAFETY: called only for ioctls 0, 1, 2 and 11 (API version, extension, IOMMU type, reset), whose argument
    // the kernel does not use as an address.
    Ok(unsafe { ioctl(file, Request { number, argument }) }?)
}

/// Issues an ioctl that takes the address of a structure, which begins with its size, or of a descriptor.
///
/// # Safety
/// `T` must be what the kernel expects for ioctl `number`, its size field must not exceed the size of
/// `argument`, and every address in it must be valid for what the ioctl does with it.
unsafe fn structure<T: ?Sized>(file: impl AsFd, number: u32, argument: &mut T) -> io::Result<IoctlOutput> {
    let argument = std::ptr::from_mut(argument).cast();
    // SAFETY: by this function's contract, `argument` is of the type that the ioctl expects, with a size field
    // that is not too large. The kernel accesses no more than that, and the borrow outlives the call.
    Ok(unsafe { ioctl(file, Request { number, argument }) }?)
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Returns whether a container supports the API version of the header and the IOMMU type that is used here.
pub(super) fn supported(container: impl AsFd) -> io::Result<bool> {
    let version = number(&container, 0, 0)?;
    Ok(version == VFIO_API_VERSION as IoctlOutput && number(container, 1, VFIO_TYPE1v2_IOMMU as usize)? > 0)
}

/// Returns the flags of a group, `VFIO_GROUP_FLAGS_…`.
pub(super) fn group_flags(group: impl AsFd) -> io::Result<u32> {
    let mut status = vfio_group_status { argsz: size::<vfio_group_status>(), flags: 0 };
    // SAFETY: `VFIO_GROUP_GET_STATUS` takes a `vfio_group_status`, with its own size in `argsz` and no
    // addresses in it.
    unsafe { structure(group, 3, &mut status) }?;
    Ok(status.flags)
}

/// Puts a group into a container.
pub(super) fn set_container(group: impl AsFd, container: impl AsFd) -> io::Result<()> {
    let mut descriptor = container.as_fd().as_raw_fd();
    // SAFETY: `VFIO_GROUP_SET_CONTAINER` takes the address of a descriptor, an `i32`, which the kernel only
    // reads.
    unsafe { structure(group, 4, &mut descriptor) }.map(drop)
}

/// Enables the type 1 IOMMU for the groups of a container.
pub(super) fn set_iommu(container: impl AsFd) -> io::Result<()> {
    number(container, 2, VFIO_TYPE1v2_IOMMU as usize).map(drop)
}

/// Opens a device of a group, by its PCI address.
pub(super) fn device(group: impl AsFd, address: &CStr) -> io::Result<OwnedFd> {
    let argument = address.as_ptr().cast_mut().cast();
    // SAFETY: `VFIO_GROUP_GET_DEVICE_FD` takes the address of a C string, which the kernel only reads;
    // `address` outlives the call.
    let descriptor = unsafe { ioctl(group, Request { number: 6, argument }) }?;
    // SAFETY: the ioctl succeeded, so `descriptor` was opened for this call and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Returns the flags of a device, `VFIO_DEVICE_FLAGS_…`.
pub(super) fn device_flags(device: impl AsFd) -> io::Result<u32> {
    let mut info = vfio_device_info { argsz: size::<vfio_device_info>(), ..Default::default() };
    // SAFETY: `VFIO_DEVICE_GET_INFO` takes a `vfio_device_info`, with its own size in `argsz` and no addresses
    // in it.
    unsafe { structure(device, 7, &mut info) }?;
    Ok(info.flags)
}

/// Returns where a region (a BAR or the configuration space) lies in the device's file.
pub(super) fn region(device: impl AsFd, index: u32) -> io::Result<vfio_region_info> {
    let mut info = vfio_region_info { argsz: size::<vfio_region_info>(), index, ..Default::default() };
    // SAFETY: `VFIO_DEVICE_GET_REGION_INFO` takes a `vfio_region_info`, with its own size in `argsz` and no
    // addresses in it.
    unsafe { structure(device, 8, &mut info) }?;
    Ok(info)
}

/// Returns the number of vectors of a kind of interrupt.
pub(super) fn vectors(device: impl AsFd, index: u32) -> io::Result<usize> {
    let mut info = vfio_irq_info { argsz: size::<vfio_irq_info>(), index, ..Default::default() };
    // SAFETY: `VFIO_DEVICE_GET_IRQ_INFO` takes a `vfio_irq_info`, with its own size in `argsz` and no addresses
    // in it.
    unsafe { structure(device, 9, &mut info) }?;
    Ok(info.count as usize)
}

/// Makes vectors 0 to `events.len() - 1` signal these eventfds.
pub(super) fn set_vectors(device: impl AsFd, index: u32, events: &[EventWaiter]) -> io::Result<()> {
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
    // SAFETY: `VFIO_DEVICE_SET_IRQS` takes a `vfio_irq_set` (here its five words), followed by `count`
    // descriptors. `argsz` covers both, which are all of `words`; the kernel only reads them.
    unsafe { structure(device, 10, &mut words[..]) }.map(drop)
}

/// Resets the device.
pub(super) fn reset(device: impl AsFd) -> io::Result<()> {
    number(device, 11, 0).map(drop)
}

/// Returns the kernel's description of a container's IOMMU: `vfio_iommu_type1_info` and its chain of
/// capabilities.
pub(super) fn iommu_info(container: impl AsFd) -> io::Result<Vec<u8>> {
    // Made of 64-bit words, for the alignment of the structure.
    let mut buffer = [0u64; 512];
    buffer[0] = size_of_val(&buffer) as u64;
    // SAFETY: `VFIO_IOMMU_GET_INFO` takes a `vfio_iommu_type1_info`. Its `argsz`, the low half of the first
    // word, is the size of the whole buffer, into which the kernel also writes the capabilities. There are no
    // addresses in it.
    unsafe { structure(container, 12, &mut buffer) }?;
    Ok(buffer.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// Lets the devices of a container read and write `len` bytes of this process's memory, at the DMA address
/// `iova`.
///
/// # Safety
/// `memory` must be valid for `len` bytes, and must not be freed before it is [unmapped](unmap) or the
/// container is closed. Until then its contents may change at any time, so no code may rely on them.
pub(super) unsafe fn map(container: impl AsFd, memory: *mut u8, iova: u64, len: usize) -> io::Result<()> {
    let mut map = vfio_iommu_type1_dma_map {
        argsz: size::<vfio_iommu_type1_dma_map>(),
        flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: memory as u64,
        iova,
        size: len as u64,
    };
    // SAFETY: `VFIO_IOMMU_MAP_DMA` takes a `vfio_iommu_type1_dma_map` with its own size in `argsz`. The memory
    // at `vaddr` may be written by the devices, by this function's contract.
    unsafe { structure(container, 13, &mut map) }.map(drop)
}

/// Removes a mapping.
pub(super) fn unmap(container: impl AsFd, iova: u64, len: usize) -> io::Result<()> {
    let argsz = size::<vfio_iommu_type1_dma_unmap>();
    let mut unmap = vfio_iommu_type1_dma_unmap { argsz, iova, size: len as u64, ..Default::default() };
    // SAFETY: `VFIO_IOMMU_UNMAP_DMA` takes a `vfio_iommu_type1_dma_unmap` with its own size in `argsz`. It
    // holds a DMA address and no address of this process.
    unsafe { structure(container, 14, &mut unmap) }.map(drop)
}
