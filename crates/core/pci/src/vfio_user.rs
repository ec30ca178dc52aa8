//! A device in another process, through vfio-user: registers by messages, doorbells in shared memory, and DMA
//! directly into this process's regions.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use crate::registers::{Bar, DeviceWaker, IoRegion, Window};
use ringpass_ipc::EventWaiter;
use ringpass_memory::{Addressing, ContiguousRange, DmaRegion, ForeignMemory};
use ringpass_port::Error;
use ringpass_vfio_user::{Access, CONFIG_REGION, Client, Doorbells, MSIX, PCI_REGIONS};

use crate::bar::BARS;
use crate::command::{BUS_MASTER, COMMAND, IO, MEMORY};
use crate::region_io::{IndirectRegion, RegionIo};
use crate::{DeviceId, ForeignMaps, PciDevice};

/// Time that a server may take for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of a device's regions that are examined.
const MAX_REGIONS: u32 = 32;

/// A device served by a vfio-user server such as `ringpass model`.
pub struct VfioUser {
    name: String,
    id: DeviceId,
    client: Arc<Connection>,
    window: OnceLock<Arc<RemoteBar>>,
    /// Regions that the device may access. They are kept so that their addresses are not reused for other
    /// memory.
    regions: Mutex<Vec<Arc<DmaRegion>>>,
    foreign: ForeignMaps,
}

/// The connection to the server, shared with the regions that were opened through it.
///
/// A thread that waits for a reply holds `client`, for seconds if the server is stopped. A posted write must
/// not wait for that, because queues arm and disarm interrupts by such writes. So writes are put into `posted`,
/// and the thread that holds `client` sends them, in order.
struct Connection {
    client: Mutex<Client>,
    posted: Mutex<Vec<PostedWrite>>,
}

/// A register write that may not have been sent yet.
struct PostedWrite {
    region: u32,
    offset: u64,
    bytes: [u8; 8],
    len: usize,
}

/// Most writes that may be posted and not sent. Further writers wait for the connection.
const MAX_POSTED_WRITES: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // If a panic left the connection in the middle of a message, the next message ends it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn new(client: Client) -> Self {
        Self { client: Mutex::new(client), posted: Mutex::default() }
    }

    /// Locks the client, after all writes posted so far have been sent.
    fn client(&self) -> ClientGuard<'_> {
        let mut client = lock(&self.client);
        self.send(&mut client);
        ClientGuard { connection: self, client: Some(client) }
    }

    /// Writes a register, without waiting for a thread that waits for the server. A failure means that the
    /// server has ended, which the next read shows.
    fn post(&self, region: u32, offset: u64, data: &[u8]) {
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let waiting = {
            let mut posted = lock(&self.posted);
            posted.push(PostedWrite { region, offset, bytes, len: data.len() });
            posted.len()
        };
        if waiting > MAX_POSTED_WRITES {
            drop(self.client());
        } else {
            self.send_if_free();
        }
    }

    /// Sends posted writes, unless another thread holds the client; that thread will send them.
    fn send_if_free(&self) {
        while !lock(&self.posted).is_empty() {
            let mut client = match self.client.try_lock() {
                Ok(client) => client,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.send(&mut client);
        }
    }

    fn send(&self, client: &mut Client) {
        for PostedWrite { region, offset, bytes, len } in std::mem::take(&mut *lock(&self.posted)) {
            let _ = client.write(region, offset, &bytes[..len]);
        }
    }
}

/// Exclusive access to the client. Writes that are posted meanwhile are sent when it is dropped.
struct ClientGuard<'a> {
    connection: &'a Connection,
    /// `Some` until dropped.
    client: Option<MutexGuard<'a, Client>>,
}

impl Deref for ClientGuard<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("it is not dropped")
    }
}

impl DerefMut for ClientGuard<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is not dropped")
    }
}

impl Drop for ClientGuard<'_> {
    fn drop(&mut self) {
        // Unlock first: a thread that posts a write after the queue was found empty then finds the client free.
        drop(self.client.take());
        self.connection.send_if_free();
    }
}

/// BAR 0, with doorbells in shared memory.
struct RemoteBar {
    connection: Arc<Connection>,
    doorbells: Doorbells,
    memory: Arc<ForeignMemory>,
    waker: DeviceWaker,
    /// Stands in for a doorbell that the server lacks.
    dummy_doorbell: Box<AtomicU32>,
}

/// Region access by messages.
struct MessageIo {
    connection: Arc<Connection>,
    region: u32,
}

impl RegionIo for MessageIo {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.connection.client().read(self.region, offset, out).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.connection.post(self.region, offset, bytes);
        Ok(())
    }
}

impl VfioUser {
    /// Connects to the server at a path.
    pub fn open(path: &Path) -> Result<Arc<Self>, Error> {
        let name = format!("vfio-user:{}", path.display());
        let mut client = Client::connect(path, REPLY_TIMEOUT).map_err(failed(&name))?;
        let mut id = [0; 4];
        client.read(CONFIG_REGION, 0, &mut id).map_err(failed(&name))?;
        let [a, b, c, d] = id;
        let id = DeviceId { vendor: u16::from_le_bytes([a, b]), device: u16::from_le_bytes([c, d]) };
        let client = Arc::new(Connection::new(client));
        Ok(Arc::new(Self {
            name,
            id,
            client,
            window: Default::default(),
            regions: Default::default(),
            foreign: Default::default(),
        }))
    }

    fn client(&self) -> ClientGuard<'_> {
        self.client.client()
    }
}

/// Returns a function that makes a session's error the port's.
fn failed(name: &str) -> impl Fn(ringpass_vfio_user::Error) -> Error {
    use ringpass_vfio_user::Error as Session;
    move |error| {
        let text = error.to_string();
        let error = match error {
            Session::Connecting(error) => error.into(),
            Session::Os { what, source } => Error::os(what, source),
            Session::ConnectionLost(_) => Error::Gone(text),
            Session::Refused { errno, .. } => Error::refused(errno, text),
        };
        error.of(name)
    }
}

impl RemoteBar {
    /// Finds the region of doorbells and maps it.
    fn new(connection: &Arc<Connection>, name: &str) -> Result<Self, Error> {
        let faulty = |why: &dyn std::fmt::Display| Error::Fault(format!("{name}: {why}"));
        let mut client = connection.client();
        let regions = client.device_info().map_err(failed(name))?.regions.min(MAX_REGIONS);
        for index in PCI_REGIONS..regions {
            let (info, file) = client.region_info(index).map_err(failed(name))?;
            let (Some(doorbells), Some(file)) = (info.doorbells, file) else { continue };
            let memory = ForeignMemory::map(file.as_fd(), info.offset, info.size as usize);
            let memory = memory.map_err(|error| faulty(&error))?;
            let asleep = cell(&memory, doorbells.asleep).ok_or_else(|| faulty(&"a doorbell outside its region"))?;
            let (_, events) = client.region_io_events(index).map_err(failed(name))?;
            // Without an eventfd the waker is silent: the device then polls.
            // SAFETY: `cell` has checked that the word is inside `memory`, which `RemoteBar` holds. Clones of
            // the waker are given out by `Bar::waker` only, to doorbells, each of which keeps its BAR alive.
            let waker = unsafe { DeviceWaker::new(asleep.cast(), events.into_iter().next()) };
            let waker = waker.map_err(|error| faulty(&error))?;
            let connection = connection.clone();
            return Ok(Self { connection, doorbells, memory, waker, dummy_doorbell: Box::default() });
        }
        Err(Error::Unsupported(format!(
            "{name}: the device has no doorbells in shared memory; only a model of 'ringpass model' has them"
        )))
    }
}

/// Returns a pointer to a word of the region, unless `offset` is unaligned or out of range.
fn cell(memory: &ForeignMemory, offset: u32) -> Option<NonNull<u32>> {
    let inside = offset.is_multiple_of(4) && offset as usize + 4 <= memory.len();
    NonNull::new(memory.as_ptr().wrapping_add(offset as usize).cast()).filter(|_| inside)
}

// SAFETY: `doorbell` returns a pointer that `cell` has checked to be inside `memory`, or one to
// `dummy_doorbell`. Both live as long as `self`. The mapping stays valid even if the server truncates the file
// (`ForeignMemory`).
unsafe impl Bar for RemoteBar {
    /// Reads ones if the server is gone, as from a card that was pulled out.
    fn read(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        let result = self.connection.client().read(0, offset.into(), &mut bytes);
        result.map_or(u32::MAX, |()| u32::from_le_bytes(bytes))
    }

    fn write(&self, offset: u32, value: u32) {
        self.connection.post(0, offset.into(), &value.to_le_bytes());
    }

    fn doorbell(&self, offset: u32) -> NonNull<u32> {
        let found = self.doorbells.cells.iter().find_map(|cells| cells.of(offset));
        found.and_then(|offset| cell(&self.memory, offset)).unwrap_or_else(|| {
            self.connection.client().close(&format!("the server has no doorbell for the register at {offset:#x}"));
            NonNull::from(&*self.dummy_doorbell).cast()
        })
    }

    fn waker(&self) -> Option<DeviceWaker> {
        Some(self.waker.clone())
    }
}

impl PciDevice for VfioUser {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn description(&self) -> String {
        let registers = self.window.get().map_or("", |_| ": registers by messages, doorbells in shared memory");
        format!("in another process, over vfio-user{registers}")
    }

    fn window(&self) -> Result<Window, Error> {
        let window = match self.window.get() {
            Some(window) => window.clone(),
            None => {
                let window = Arc::new(RemoteBar::new(&self.client, &self.name)?);
                self.window.get_or_init(|| window).clone()
            }
        };
        Ok(Window::new(window))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        let region = Some(bar as u32).filter(|_| bar < BARS);
        let len = region.map_or(Ok(0), |region| self.client().region_info(region).map(|(info, _)| info.size));
        match (region, len.map_err(failed(&self.name))?) {
            (Some(region), len @ 1..) => {
                let region_io = MessageIo { connection: self.client.clone(), region };
                let description = "registers by messages (vfio-user)".into();
                Ok(Arc::new(IndirectRegion { region_io, len: len as usize, description }))
            }
            _ => Err(Error::Unsupported(format!("{}: the device has no BAR {bar}", self.name))),
        }
    }

    fn memory(&self, bar: usize, len: usize) -> Result<Arc<ForeignMemory>, Error> {
        let (info, file) = self.client().region_info(bar as u32).map_err(failed(&self.name))?;
        // Either the whole region can be mapped, or only its areas; then the first must start at offset 0.
        let there = info.areas.first().map_or(info.size, |area| if area.offset == 0 { area.size } else { 0 });
        match file.filter(|_| bar < BARS && info.mappable && len as u64 <= there) {
            Some(file) => Ok(ForeignMemory::map(file.as_fd(), info.offset, len)?),
            None => Err(Error::Unsupported(format!(
                "{}: {len} bytes of memory at BAR {bar}, of which {there} can be mapped",
                self.name
            ))),
        }
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.client().read(CONFIG_REGION, offset as u64, out).map_err(failed(&self.name))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Virtual
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, region: &Arc<DmaRegion>) -> Result<(), Error> {
        for ContiguousRange { iova, offset, len } in region.contiguous_ranges() {
            let file = (region.file()?, offset as u64);
            self.client().dma_map(iova, len as u64, file, Access::ReadWrite).map_err(failed(&self.name))?;
        }
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).push(region.clone());
        Ok(())
    }

    fn map_foreign(&self, memory: &Arc<ForeignMemory>) -> Result<(), Error> {
        let (iova, len) = (memory.as_ptr() as u64, memory.mapped_len() as u64);
        let Some(file) = memory.file() else {
            return Err(Error::Unsupported(format!("{}: memory without its file cannot be passed on", self.name)));
        };
        self.foreign
            .add(memory, || self.client().dma_map(iova, len, file, Access::ReadWrite).map_err(failed(&self.name)))
    }

    fn unmap_foreign(&self, memory: &Arc<ForeignMemory>) {
        let (iova, len) = (memory.as_ptr() as u64, memory.mapped_len() as u64);
        // An error means that the server is gone, and its mappings with it.
        self.foreign.remove(memory, || drop(self.client().dma_unmap(iova, len)));
    }

    fn set_bus_master(&self, on: bool) -> Result<(), Error> {
        let mut client = self.client();
        let mut command = [0; 2];
        client.read(CONFIG_REGION, COMMAND, &mut command).map_err(failed(&self.name))?;
        let master = if on { BUS_MASTER } else { 0 };
        let command = u16::from_le_bytes(command) & !BUS_MASTER | MEMORY | IO | master;
        client.write(CONFIG_REGION, COMMAND, &command.to_le_bytes()).map_err(failed(&self.name))?;
        // The read returns after the write was carried out.
        client.read(CONFIG_REGION, COMMAND, &mut [0; 2]).map_err(failed(&self.name))
    }

    fn interrupts(&self, vectors: usize) -> Result<Vec<EventWaiter>, Error> {
        let mut client = self.client();
        let there = client.irq_info(MSIX).map_err(failed(&self.name))?.count as usize;
        let events: Vec<EventWaiter> = (0..vectors.min(there))
            .map(|_| EventWaiter::new())
            .collect::<Result<_, _>>()
            .map_err(|error: std::io::Error| Error::os(self.name.as_str(), error))?;
        let shared: Vec<BorrowedFd<'_>> = events.iter().map(EventWaiter::event).collect();
        client.set_vectors(MSIX, &shared).map_err(failed(&self.name))?;
        Ok(events)
    }
}
