//! A session without its socket: takes messages and returns replies.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use ringpass_ipc::EventNotifier;
use ringpass_memory::{Access, Memory};
use rustix::io::Errno;

use crate::device::{Device, MSIX, PCI_IRQS, Region};
use crate::files::Files;
use crate::message::irq_set;
use crate::reply::is_whole;
use crate::{Command, DeviceInfo, Ended, Header, IoEvent, IrqInfo, Kind, Refusal, RegionInfo, Request, version};
use crate::{HEADER, MAX_TRANSFER};

/// A reply, ready to be sent.
#[derive(Debug)]
pub struct ReplyMessage {
    /// The complete message.
    pub bytes: Vec<u8>,
    /// Descriptors to send with it.
    pub fds: Vec<OwnedFd>,
}

/// State of a session: whether the version was negotiated, and the files of the memory that
/// the device may access. The map of that memory is the device's.
#[derive(Default)]
pub struct Dispatcher {
    version_negotiated: bool,
    files: Files,
    /// Eventfds of the vectors, by vector.
    signals: BTreeMap<u32, EventNotifier>,
    refusal: Option<String>,
}

/// Outcome of a command that does not succeed: refused, or the end of the session.
enum Fault {
    Refused(Refusal),
    Ended(Ended),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Ended> for Fault {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// Granularity of maps, in bytes.
const PAGE: u64 = 4096;

type Payload = (Vec<u8>, Vec<OwnedFd>);

fn refuse<T>(why: impl Into<std::borrow::Cow<'static, str>>) -> Result<T, Fault> {
    Err(Refusal::invalid(why).into())
}

impl Dispatcher {
    /// Carries out a message and returns the reply, if it has one. Descriptors that are not kept are closed.
    pub fn message(
        &mut self,
        header: Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<Option<ReplyMessage>, Ended> {
        if matches!(header.kind, Kind::Reply | Kind::Error) {
            return Err(Ended::Malformed("a reply, where nothing was asked"));
        }
        if !self.version_negotiated && header.command != Command::Version as u16 {
            return Err(Ended::Version("has not begun with its version"));
        }
        let request = Request::parse(header.command, body).map_err(Fault::from);
        let result = request.and_then(|request| self.carry_out(request, fds, device));
        // The command or the device may have accessed memory that the client has truncated.
        if self.files.lost() {
            return Err(Ended::MemoryLost);
        }
        let (kind, errno, (body, fds)) = match result {
            Ok(payload) => (Kind::Reply, 0, payload),
            Err(Fault::Ended(ended)) => return Err(ended),
            Err(Fault::Refused(Refusal { errno, why })) => {
                self.refusal.get_or_insert_with(|| format!("command {}: {why}", header.command));
                (Kind::Error, errno.raw_os_error() as u32, Payload::default())
            }
        };
        if header.kind == Kind::Posted {
            return Ok(None);
        }
        let size = (HEADER + body.len()) as u32;
        let mut bytes = Header { size, kind, error: errno, ..header }.to_bytes().to_vec();
        bytes.extend_from_slice(&body);
        Ok(Some(ReplyMessage { bytes, fds }))
    }

    fn carry_out(
        &mut self,
        request: Request<'_>,
        fds: Vec<OwnedFd>,
        device: &mut dyn Device,
    ) -> Result<Payload, Fault> {
        let takes_fds = matches!(request, Request::DmaMap { .. } | Request::SetIrqs { .. });
        if !fds.is_empty() && !takes_fds {
            return refuse(format!("{} file descriptors with {:?}, which takes none", fds.len(), request.command()));
        }
        let nothing = Payload::default();
        match request {
            Request::Version { major, minor, data } => {
                if self.version_negotiated {
                    return refuse("a second version");
                }
                let reply = version::answer(major, minor, data)??;
                self.version_negotiated = true;
                Ok((reply, Vec::new()))
            }
            Request::DmaMap { flags, offset, address, size } => {
                self.map(flags, (address, size), (fds, offset), device)?;
                Ok(nothing)
            }
            Request::DmaUnmap { flags, address, size } => {
                self.unmap(flags, address, size, device)?;
                Ok((request.to_bytes(), Vec::new()))
            }
            Request::DeviceInfo { argsz } => {
                let info = DeviceInfo { regions: device.regions(), irqs: PCI_IRQS };
                Ok((info.to_bytes(argsz)?, Vec::new()))
            }
            Request::RegionInfo { argsz, index } => region_info(index, argsz, device),
            Request::RegionIoFds { argsz, index } => io_events(index, argsz, device),
            Request::IrqInfo { argsz, index } => match index {
                ..PCI_IRQS => {
                    let count = if index == MSIX { device.vectors() } else { 0 };
                    Ok((IrqInfo { index, count }.to_bytes(argsz)?, Vec::new()))
                }
                _ => refuse(format!("interrupts of type {index}")),
            },
            Request::SetIrqs { flags, index, start, count } => {
                set_irqs((flags, index), (start, count), fds, (device, &mut self.signals))?;
                Ok(nothing)
            }
            Request::RegionRead { offset, region, count } => {
                access(device, region, offset, u64::from(count), |region| region.readable)?;
                let mut reply = Request::RegionRead { offset, region, count }.to_bytes();
                let head = reply.len();
                reply.resize(head + (count as usize).min(MAX_TRANSFER), 0);
                device.read(region, offset, &mut reply[head..]);
                Ok((reply, Vec::new()))
            }
            Request::RegionWrite { offset, region, data } => {
                let count = data.len() as u32;
                access(device, region, offset, data.len() as u64, |region| region.writable)?;
                device.write(region, offset, data);
                Ok((Request::RegionRead { offset, region, count }.to_bytes(), Vec::new()))
            }
            Request::RegionWriteMulti { writes } => {
                let mut done = 0u64;
                for write in Request::writes(writes) {
                    let write = write?;
                    access(device, write.region, write.offset, write.count.into(), |region| region.writable)?;
                    device.write(write.region, write.offset, &write.data[..write.count as usize]);
                    done += 1;
                }
                Ok((done.to_ne_bytes().to_vec(), Vec::new()))
            }
            Request::Reset => {
                device.reset();
                Ok(nothing)
            }
        }
    }

    fn map(
        &mut self,
        flags: u32,
        (iova, size): (u64, u64),
        (mut fds, offset): (Vec<OwnedFd>, u64),
        device: &mut dyn Device,
    ) -> Result<(), Fault> {
        const READABLE: u32 = 1;
        const WRITABLE: u32 = 2;
        let access = match flags {
            READABLE => Access::Read,
            // Write-only memory does not exist in the address spaces of today's processors, so it is mapped for
            // reading too.
            WRITABLE => Access::ReadWrite,
            _ if flags == READABLE | WRITABLE => Access::ReadWrite,
            _ => return refuse(format!("a map with flags {flags:#x}")),
        };
        let file = match (fds.pop(), fds.len()) {
            (Some(file), 0) => file,
            // A PC's RAM begins at address 0, and the device needs it.
            (None, _) if iova == 0 => return Err(Ended::NotShared.into()),
            // ROMs and other devices' memory, which may be of any size. Our devices do not access it, so it is
            // not mapped.
            (None, _) => return Ok(()),
            (Some(_), more) => return refuse(format!("a map with {} file descriptors", more + 1)),
        };
        check_range(iova, size)?;
        let end = offset.checked_add(size).filter(|_| offset.is_multiple_of(PAGE));
        let end = end.ok_or_else(|| Refusal::invalid(format!("a map from offset {offset:#x} of a file")))?;
        self.files.drop_unused();
        let memory = Memory::from(self.files.map(file, end, access)?).part(offset as usize, size as usize);
        let memory = memory.ok_or_else(|| Refusal::invalid("a map behind the end of its file"))?;
        Ok(device.map(iova, memory, access).map_err(Refusal::from)?)
    }

    fn unmap(&mut self, flags: u32, iova: u64, size: u64, device: &mut dyn Device) -> Result<(), Fault> {
        const ALL: u32 = 2;
        match (flags, iova, size) {
            (ALL, 0, 0) => {
                unmap_all(device);
            }
            (0, ..) => {
                check_range(iova, size)?;
                device.unmap(iova, size).map_err(Refusal::from)?;
            }
            _ => return refuse(format!("an unmap with flags {flags:#x}")),
        }
        self.files.drop_unused();
        Ok(())
    }

    /// Returns whether the client has truncated memory that the device may have accessed.
    pub fn lost(&self) -> bool {
        self.files.lost()
    }

    /// Returns the first refusal since the last call.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    /// Returns whether an eventfd of the client takes so long to be signalled that no more signals are sent.
    pub fn has_slow_eventfd(&self) -> bool {
        EventNotifier::any_slow(self.signals.values())
    }

    /// Takes from the device everything that the client has given to it, and resets it.
    pub fn end(&mut self, device: &mut dyn Device) {
        (0..device.vectors()).for_each(|vector| device.set_vector(vector, None));
        device.reset();
        unmap_all(device);
        self.files = Files::default();
        self.version_negotiated = false;
    }
}

/// Unmaps the whole address space, in two halves because its length does not fit in 64 bits. This does not fail, as
/// neither half leaves a mapping with a hole.
fn unmap_all(device: &mut dyn Device) {
    const HALF: u64 = 1 << 63;
    let _ = [device.unmap(0, HALF), device.unmap(HALF, HALF)];
}

/// Checks that a range of addresses consists of whole pages and does not wrap.
fn check_range(iova: u64, size: u64) -> Result<(), Refusal> {
    let pages = size > 0 && (iova | size).is_multiple_of(PAGE);
    let last = iova.checked_add(size.wrapping_sub(1)).filter(|_| pages);
    last.map(drop).ok_or_else(|| Refusal::invalid(format!("a map at {iova:#x} of {size:#x} bytes")))
}

fn region(device: &dyn Device, index: u32) -> Result<Region<'_>, Fault> {
    if index < device.regions() { Ok(device.region(index)) } else { refuse(format!("region {index}")) }
}

fn access(
    device: &dyn Device,
    index: u32,
    offset: u64,
    count: u64,
    allowed: impl Fn(&Region<'_>) -> bool,
) -> Result<(), Fault> {
    let region = region(device, index)?;
    let inside = offset.checked_add(count).is_some_and(|end| end <= region.size);
    if inside && allowed(&region) {
        return Ok(());
    }
    refuse(format!("an access to region {index} at {offset:#x}, {count} bytes"))
}

/// Returns a reply with its descriptor. A reply that is cut goes without: the client asks again for the whole.
fn with_descriptor(reply: Vec<u8>, fd: Option<BorrowedFd<'_>>) -> Result<Payload, Fault> {
    let fd = fd.filter(|_| is_whole(&reply)).map(|fd| fd.try_clone_to_owned()).transpose();
    let fd = fd.map_err(|_| Refusal::new(Errno::MFILE, "no file descriptor left for the reply"))?;
    Ok((reply, fd.into_iter().collect()))
}

fn region_info(index: u32, argsz: u32, device: &mut dyn Device) -> Result<Payload, Fault> {
    let region = region(device, index)?;
    let mapping = region.mapping;
    let info = RegionInfo {
        index,
        size: region.size,
        readable: region.readable,
        writable: region.writable,
        mappable: mapping.is_some(),
        offset: mapping.map_or(0, |mapping| mapping.offset),
        areas: mapping.map_or(Vec::new(), |mapping| mapping.areas.to_vec()),
        doorbells: region.doorbells.map(|(doorbells, _)| doorbells.clone()),
    };
    with_descriptor(info.to_bytes(argsz)?, mapping.map(|mapping| mapping.file))
}

fn io_events(index: u32, argsz: u32, device: &mut dyn Device) -> Result<Payload, Fault> {
    let offered = region(device, index)?.doorbells;
    let events = offered.map(|(doorbells, _)| IoEvent { offset: doorbells.asleep.into(), size: 4, fd: 0 });
    let events: Vec<IoEvent> = events.into_iter().collect();
    with_descriptor(IoEvent::all_to_bytes(index, &events, argsz)?, offered.map(|(_, event)| event))
}

fn set_irqs(
    (flags, index): (u32, u32),
    (start, count): (u32, u32),
    fds: Vec<OwnedFd>,
    (device, known): (&mut dyn Device, &mut BTreeMap<u32, EventNotifier>),
) -> Result<(), Fault> {
    const CLEAR: u32 = irq_set::DATA_NONE | irq_set::ACTION_TRIGGER;
    const SET: u32 = irq_set::DATA_EVENTFD | irq_set::ACTION_TRIGGER;
    let vectors = match index {
        MSIX => device.vectors(),
        ..PCI_IRQS => 0,
        _ => return refuse(format!("interrupts of type {index}")),
    };
    let end = start.checked_add(count).filter(|&end| end <= vectors);
    let range = start..end.ok_or_else(|| Refusal::invalid(format!("vectors {start} and {count} more of {vectors}")))?;
    match flags {
        CLEAR if count == 0 && fds.is_empty() => {
            known.clear();
            (0..vectors).for_each(|vector| device.set_vector(vector, None));
            Ok(())
        }
        SET if fds.is_empty() => {
            for vector in range {
                known.remove(&vector);
                device.set_vector(vector, None);
            }
            Ok(())
        }
        SET if fds.len() == count as usize => {
            let signals: Result<Vec<EventNotifier>, _> = fds.into_iter().map(EventNotifier::new).collect();
            let signals = signals.map_err(|error| Refusal::invalid(error.to_string()))?;
            for (vector, signal) in range.zip(signals) {
                known.insert(vector, signal.clone());
                device.set_vector(vector, Some(signal));
            }
            Ok(())
        }
        SET => refuse(format!("{count} vectors with {} file descriptors", fds.len())),
        _ => refuse(format!("interrupts with flags {flags:#x}")),
    }
}
