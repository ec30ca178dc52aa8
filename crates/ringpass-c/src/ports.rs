//! Ports: opening, the control side, closing.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use ringpass::{Idle, Port, QueuePair};

use crate::{Config, Failure, Queue, RINGPASS_GONE, result};

/// Ports that were opened together, with the pool that their packets come from.
pub struct Ports {
    names: Vec<CString>,
    idle: Idle,
    control: Mutex<Control>,
}

struct Control {
    ports: ringpass::Ports,
    /// Queues by port; none until one is asked for. Made by `Box::into_raw`, as the program holds pointers to them.
    queues: Vec<Vec<*mut Queue>>,
    /// Ends of cables, likewise.
    cable_ends: Vec<*mut Queue>,
}

// SAFETY: the pointers are followed only by the program, which says that each queue is used by one thread at a time, and by
// `Ports::finish`, when no queue is used any more. Queues may be freed by any thread, as `QueuePair` and `Cache` are `Send`.
unsafe impl Send for Control {}

/// Counters of a port since it was opened. Bytes are those of the frames, without CRC.
#[repr(C)]
pub struct Stats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames that arrived and were lost: no descriptor or buffer was free, or the frame was faulty.
    pub rx_drops: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that were taken for sending and not sent.
    pub tx_drops: u64,
}

impl From<ringpass::Stats> for Stats {
    fn from(stats: ringpass::Stats) -> Self {
        let ringpass::Stats { rx_packets, rx_bytes, rx_drops, tx_packets, tx_bytes, tx_drops } = stats;
        Self { rx_packets, rx_bytes, rx_drops, tx_packets, tx_bytes, tx_drops }
    }
}

/// State of a port's link.
#[repr(C)]
pub struct Link {
    /// Whether there is a link.
    pub up: bool,
    /// Speed in Mbit/s; 0 where that is meaningless.
    pub mbps: u32,
}

impl Ports {
    fn open(addresses: &[String], config: &ringpass::Config) -> Result<Self, Failure> {
        let ports = ringpass::open(addresses, config)?;
        ports.notes().iter().for_each(|note| config.notices.send(note));
        let names = ports.iter().map(|port| CString::new(port.name()).unwrap_or_default()).collect();
        let queues = ports.iter().map(|_| Vec::new()).collect();
        Ok(Self { names, idle: config.idle(), control: Mutex::new(Control { ports, queues, cable_ends: Vec::new() }) })
    }

    /// Runs `with` on the ports, alone. After a panic, the next call finds what there is.
    fn control<R>(&self, with: impl FnOnce(&mut Control) -> R) -> R {
        with(&mut self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn queue(&self, port: usize, index: usize) -> Result<*mut Queue, Failure> {
        self.control(|Control { ports, queues, .. }| {
            let queues = queues.get_mut(port).ok_or_else(|| Failure::invalid("there is no port of this number"))?;
            if queues.is_empty() {
                let pool = ports.pool().clone();
                let new = |pair: QueuePair| Box::into_raw(Box::new(Queue::new(pair, &pool, self.idle.clone())));
                *queues = ports[port].take_queues().into_iter().map(new).collect();
            }
            queues.get(index).copied().ok_or_else(|| Failure::invalid("the port has fewer queues"))
        })
    }

    fn cable(&self, slots: usize) -> [*mut Queue; 2] {
        self.control(|Control { ports, cable_ends, .. }| {
            let new = |pair| Box::into_raw(Box::new(Queue::new(pair, ports.pool(), self.idle.clone())));
            let ends = ringpass::cable("cable", slots).map(new);
            cable_ends.extend(ends);
            ends
        })
    }

    /// Closes the queues, and completes what the ports write.
    ///
    /// # Safety
    /// No queue is used any more.
    unsafe fn finish(&self) -> Result<c_int, Failure> {
        self.control(|Control { ports, queues, cable_ends }| {
            for queue in queues.iter_mut().flat_map(std::mem::take).chain(std::mem::take(cable_ends)) {
                // SAFETY: `queue` or `cable` made it by `Box::into_raw`. It has just left the list, so it is freed once. Nobody uses it, by
                // this function's contract.
                drop(unsafe { Box::from_raw(queue) });
            }
            Ok(ports.iter_mut().map(|port| port.finish()).fold(Ok(()), Result::and).map(|()| 0)?)
        })
    }
}

/// Runs `with` on ports.
///
/// # Safety
/// `ports` is NULL or valid during the call.
unsafe fn with(ports: *const Ports, with: impl FnOnce(&Ports) -> Result<c_int, Failure>) -> c_int {
    result(|| {
        // SAFETY: not NULL is valid, by this function's contract. Ports are only changed through their lock.
        with(unsafe { ports.as_ref() }.ok_or_else(|| Failure::invalid("the ports are NULL"))?)
    })
}

/// Runs `with` on one port, alone.
///
/// # Safety
/// `ports` is NULL or valid during the call.
unsafe fn with_port(
    ports: *const Ports,
    index: usize,
    with_port: impl FnOnce(&mut dyn Port) -> Result<c_int, Failure>,
) -> c_int {
    let one = |ports: &Ports| {
        ports.control(|control| match control.ports.get_mut(index) {
            Some(port) => with_port(&mut **port),
            None => Err(Failure::invalid("there is no port of this number")),
        })
    };
    // SAFETY: this function has the contract of `with`.
    unsafe { with(ports, one) }
}

/// Writes a result to where the program wants it.
///
/// # Safety
/// `to` is NULL, or a value can be written there.
unsafe fn write<T>(to: *mut T, value: T) -> Result<c_int, Failure> {
    if to.is_null() {
        return Err(Failure::invalid("the pointer for the result is NULL"));
    }
    // SAFETY: not NULL can be written, by this function's contract.
    unsafe { to.write(value) };
    Ok(0)
}

/// Opens ports at `count` addresses, such as "0000:01:00.0", "tap:a" or "model:null", and sets `*ports`. `config` may be NULL, for
/// the defaults. Ports are numbered from 0 in the order of their addresses. On failure nothing stays open, and `*ports` is NULL.
///
/// # Safety
/// `addresses` points to `count` strings. `config` is NULL or came from ringpass_config_new. A pointer can be written to `ports`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_open(
    addresses: *const *const c_char,
    count: usize,
    config: *const Config,
    ports: *mut *mut Ports,
) -> c_int {
    result(|| {
        // SAFETY: the caller says that a pointer can be written there, unless it is NULL.
        unsafe { write(ports, null_mut()) }?;
        if addresses.is_null() || count == 0 {
            return Err(Failure::invalid("there are no addresses"));
        }
        let text = |index| {
            // SAFETY: the caller says that there are `count` pointers, and `index` is below.
            let address: *const c_char = unsafe { *addresses.add(index) };
            if address.is_null() {
                return Err(Failure::invalid("an address is NULL"));
            }
            // SAFETY: it is not NULL, and the caller says that it is a string, valid during the call.
            Ok(unsafe { CStr::from_ptr(address) }.to_string_lossy().into_owned())
        };
        let addresses: Vec<String> = (0..count).map(text).collect::<Result<_, _>>()?;
        // SAFETY: the caller says that `config` is NULL or valid, and that nobody changes it during the call.
        let open = match unsafe { config.as_ref() } {
            Some(config) => Ports::open(&addresses, &config.0)?,
            None => Ports::open(&addresses, &Config::default().0)?,
        };
        // SAFETY: `ports` was checked above, and the caller says that a pointer can be written there.
        unsafe { write(ports, Box::into_raw(Box::new(open))) }
    })
}

/// Returns the number of ports, or a negative code.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_count(ports: *const Ports) -> c_int {
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with(ports, |ports| Ok(ports.names.len() as c_int)) }
}

/// Returns the address of a port; NULL if there is no such port. It is valid until ringpass_close.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_name(ports: *const Ports, port: usize) -> *const c_char {
    // SAFETY: the caller says that `ports` is valid.
    unsafe { ports.as_ref() }.and_then(|ports| ports.names.get(port)).map_or(std::ptr::null(), |name| name.as_ptr())
}

/// Sets `*queue` to a queue pair of a port, both numbered from 0. The same numbers give the same queue each time. A model or card
/// begins to work when the first of its queues is asked for. The queue is valid until ringpass_close.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. A pointer can be written to `queue`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_queue(
    ports: *const Ports,
    port: usize,
    index: usize,
    queue: *mut *mut Queue,
) -> c_int {
    // SAFETY: the caller says that `ports` is valid, and that a pointer can be written to `queue`.
    unsafe { with(ports, |ports| write(queue, ports.queue(port, index)?)) }
}

/// Copies the MAC address of a port to `mac`; zeros where it has none.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. 6 bytes can be written at `mac`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_mac(ports: *const Ports, port: usize, mac: *mut u8) -> c_int {
    // SAFETY: the caller says that `ports` is valid, and that 6 bytes can be written at `mac`; bytes need no alignment.
    unsafe { with_port(ports, port, |port| write(mac.cast::<[u8; 6]>(), port.mac().0)) }
}

/// Sets `*link` to the present state of a port's link.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. `*link` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_link(ports: *const Ports, port: usize, link: *mut Link) -> c_int {
    let get = |port: &mut dyn Port| {
        let ringpass::Link { up, mbps } = port.link();
        // SAFETY: the caller says that `*link` can be written.
        unsafe { write(link, Link { up, mbps }) }
    };
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with_port(ports, port, get) }
}

/// Sets `*stats` to the counters of a port.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. `*stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_stats(ports: *const Ports, port: usize, stats: *mut Stats) -> c_int {
    let get = |port: &mut dyn Port| {
        // SAFETY: the caller says that `*stats` can be written.
        unsafe { write(stats, port.stats().into()) }
    };
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with_port(ports, port, get) }
}

/// Sets `*stats` to the counters of a queue pair of a port, both numbered from 0. RINGPASS_FAILED if the port does not count by
/// queue. Frames that were lost before a queue was chosen for them are only in the counters of the port.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. `*stats` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_queue_stats(
    ports: *const Ports,
    port: usize,
    index: usize,
    stats: *mut Stats,
) -> c_int {
    let get = |port: &mut dyn Port| {
        let queues = port.queue_stats();
        if queues.is_empty() {
            let what = format!("{} does not count by queue", port.name());
            return Err(ringpass::Error::Unsupported(what).into());
        }
        let queue = *queues.get(index).ok_or_else(|| Failure::invalid("the port has fewer queues"))?;
        // SAFETY: the caller says that `*stats` can be written.
        unsafe { write(stats, queue.into()) }
    };
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with_port(ports, port, get) }
}

/// Creates a cable between two threads of the program: what is sent at one end is received at the other, without a copy, with room for
/// at least `slots` packets (1 to 65536) in each direction. A full cable takes no more. Sets `ends[0]` and `ends[1]`, which are used as
/// the queues of ports are, and are valid until ringpass_close.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. Two pointers can be written to `ends`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_cable(ports: *const Ports, slots: usize, ends: *mut *mut Queue) -> c_int {
    let make = |ports: &Ports| {
        if ends.is_null() || !(1..=65536).contains(&slots) {
            return Err(Failure::invalid("a cable has 1 to 65536 slots and an array for its two ends"));
        }
        // SAFETY: the caller says that two pointers can be written.
        unsafe { write(ends.cast::<[*mut Queue; 2]>(), ports.cable(slots)) }
    };
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with(ports, make) }
}

/// Sets whether a port receives frames for any MAC address, or only those for its own, broadcast and multicast.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_port_set_promiscuous(ports: *const Ports, port: usize, on: bool) -> c_int {
    let set = |port: &mut dyn Port| Ok(port.set_promiscuous(on).map(|()| 0)?);
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with_port(ports, port, set) }
}

/// Checks that all ports still work; to be called a few times a second. Returns 0 if they do, 1 if one has delivered all of its input
/// (the end of a capture file), and RINGPASS_GONE if the device, interface or peer behind one has disappeared.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_check(ports: *const Ports) -> c_int {
    let check = |ports: &Ports| {
        let finished = ports.control(|control| control.ports.check());
        finished.map(c_int::from).map_err(|error| Failure(RINGPASS_GONE, error.to_string()))
    };
    // SAFETY: the caller says that `ports` is valid.
    unsafe { with(ports, check) }
}

/// Closes the queues of all ports, and completes the capture files that they write. Afterwards the counters are final, and there
/// are no queues. Fails if something could not be written.
///
/// # Safety
/// `ports` came from ringpass_open and was not closed. None of its queues is used any more, by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_finish(ports: *const Ports) -> c_int {
    // SAFETY: the caller says that `ports` is valid, and that no queue is used any more.
    unsafe { with(ports, |ports| ports.finish()) }
}

/// Closes ports: does what ringpass_finish does unless that was called, and stops their devices. Returns the number of buffers that
/// have not come back, which is 0 if the program has freed its packets, or a negative code if something could not be
/// written; the ports are closed then, too. Packets that the program still holds may be freed later, but not used otherwise.
///
/// # Safety
/// `ports` came from ringpass_open, or is NULL. Neither it nor a queue of it is used any more, by any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_close(ports: *mut Ports) -> c_int {
    result(|| {
        if ports.is_null() {
            return Ok(0);
        }
        // SAFETY: the caller says that `ringpass_open` made it, by `Box::into_raw`, and gives it up.
        let ports = unsafe { Box::from_raw(ports) };
        // SAFETY: the caller says that no queue is used any more.
        let finished = unsafe { ports.finish() };
        let missing = ports.control.into_inner().unwrap_or_else(PoisonError::into_inner).ports.close_and_count();
        finished?;
        Ok(missing?.try_into().unwrap_or(c_int::MAX))
    })
}
