//! Queues: receiving, sending, allocating, waiting.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use ringpass::{Burst, Idle, Mempool, QueuePair, RxQueue, WakeSource, Wakeable};
use ringpass_memory::{Cache, MAX_BATCH};

use crate::{Failure, Packet, result};

/// A pair of a receiving and a sending queue, of one port. It belongs to one thread at a time.
pub struct Queue {
    pair: QueuePair,
    /// Free buffers, for `ringpass_alloc`.
    cache: Cache,
    /// The state of a waiting loop whose first queue this is.
    idle: Idle,
}

impl Queue {
    pub(crate) fn new(pair: QueuePair, pool: &Mempool, idle: Idle) -> Self {
        Self { pair, cache: pool.cache(), idle }
    }

    /// Sends packets from the front of `places` and returns their number.
    ///
    /// # Safety
    /// Each place has a packet that is the program's own, or is empty.
    unsafe fn send(&mut self, places: &mut [Packet]) -> Result<usize, Failure> {
        let mut sent = 0;
        for chunk in places.chunks_mut(MAX_BATCH) {
            let mut burst = Burst::new(MAX_BATCH);
            let mut wrong = None;
            for place in chunk.iter_mut() {
                // SAFETY: the place has a packet that is the program's own or is empty, by this function's contract.
                match unsafe { place.get().map(|_| ()).and_then(|()| place.take()) } {
                    Ok(packet) => burst.push(packet),
                    Err(failure) => {
                        wrong = Some(failure);
                        break;
                    }
                }
            }
            let given = burst.len();
            let taken = self.pair.tx.tx_burst(&mut burst);
            for (place, packet) in chunk[taken..].iter_mut().zip(burst.drain()) {
                *place = Packet::new(packet);
            }
            sent += taken;
            match wrong {
                Some(failure) if sent == 0 && given == 0 => return Err(failure),
                _ if taken < chunk.len() => break,
                _ => {}
            }
        }
        Ok(sent)
    }
}

/// Runs `with` on a queue and an array of packets.
///
/// # Safety
/// `queue` is NULL, or valid and used by nobody else during the call. `packets` is NULL, or `count` packets can be written there, by
/// nobody else during the call.
#[inline]
unsafe fn with(
    queue: *mut Queue,
    packets: *mut Packet,
    count: usize,
    with: impl FnOnce(&mut Queue, &mut [MaybeUninit<Packet>]) -> Result<usize, Failure>,
) -> c_int {
    result(|| {
        // SAFETY: if not NULL, it is valid and not used by others, by this function's contract.
        let queue = unsafe { queue.as_mut() }.ok_or_else(|| Failure::invalid("the queue is NULL"))?;
        let packets = match count.min(c_int::MAX as usize) {
            0 => &mut [],
            _ if packets.is_null() => return Err(Failure::invalid("the array of packets is NULL")),
            // SAFETY: if not NULL, there is room for `count` packets that nobody else uses, by this function's contract.
            // Nothing is assumed of their contents.
            count => unsafe { std::slice::from_raw_parts_mut(packets.cast(), count) },
        };
        Ok(with(queue, packets)? as c_int)
    })
}

/// Moves packets to the front of an array, which has room for all of them, and returns their number.
fn hand_out(mut burst: Burst, places: &mut [MaybeUninit<Packet>]) -> usize {
    let count = burst.len();
    for (place, packet) in places.iter_mut().zip(burst.drain()) {
        place.write(Packet::new(packet));
    }
    count
}

/// Receives up to `count` packets (of which at most 256 come at a time) without waiting. Returns their number, 0 if there are none,
/// or a negative code. The packets belong to the program then.
///
/// # Safety
/// `queue` is of ports that are open, and no other thread uses it. `count` packets can be written at `packets`; those that are
/// there already are overwritten, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_receive(queue: *mut Queue, packets: *mut Packet, count: usize) -> c_int {
    let receive = |queue: &mut Queue, places: &mut [MaybeUninit<Packet>]| {
        if places.is_empty() {
            return Ok(0);
        }
        let mut burst = Burst::new(places.len());
        queue.pair.rx.rx_burst(&mut burst);
        Ok(hand_out(burst, places))
    };
    // SAFETY: the caller says that queue and packets are valid, and used by no other thread.
    unsafe { with(queue, packets, count, receive) }
}

/// Sends packets from the front of the array without waiting. Returns the number of those that were taken, whose handles are zeros
/// now; the others still belong to the program, which may try again or free them. Frames that the port can never send, such as
/// those longer than its MTU allows, are taken and counted in `tx_drops`. A wrong `length` or an empty handle ends the call; if
/// it is the first of the array, the result is RINGPASS_INVALID.
///
/// # Safety
/// `queue` is of ports that are open, and no other thread uses it. There are `count` packets at `packets`, of the same ports,
/// that were neither sent nor freed, or whose handles are zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_send(queue: *mut Queue, packets: *mut Packet, count: usize) -> c_int {
    let send = |queue: &mut Queue, places: &mut [MaybeUninit<Packet>]| {
        // SAFETY: the caller says that there are `count` packets, which `places` borrows mutably.
        let places = unsafe { &mut *(&raw mut *places as *mut [Packet]) };
        // SAFETY: the caller says that the packets are the program's own, or that their handles are zeros.
        unsafe { queue.send(places) }
    };
    // SAFETY: the caller says that queue and packets are valid, and used by no other thread.
    unsafe { with(queue, packets, count, send) }
}

/// Takes up to `count` empty packets from the pool, for frames to be written and sent on any port of the same ringpass_open. Returns
/// their number, fewer if the pool runs dry, or a negative code. `length` is 0 at first.
///
/// # Safety
/// `queue` is of ports that are open, and no other thread uses it. `count` packets can be written at `packets`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_alloc(queue: *mut Queue, packets: *mut Packet, count: usize) -> c_int {
    let alloc = |queue: &mut Queue, places: &mut [MaybeUninit<Packet>]| {
        let mut filled = 0;
        for chunk in places.chunks_mut(MAX_BATCH) {
            let mut burst = Burst::new(chunk.len());
            queue.cache.alloc(&mut burst);
            filled += hand_out(burst, chunk);
            if filled % MAX_BATCH != 0 {
                break;
            }
        }
        Ok(filled)
    };
    // SAFETY: the caller says that queue and packets are valid, and used by no other thread.
    unsafe { with(queue, packets, count, alloc) }
}

/// All queues of a loop and its time limit, as one source of wake-ups.
struct Sources<'a> {
    queues: &'a [*mut Queue],
    limit: Duration,
}

impl Sources<'_> {
    fn each(&mut self, each: impl Fn(&mut dyn RxQueue)) {
        for &queue in self.queues {
            // SAFETY: `ringpass_wait` checked that it is not NULL; its caller says that the queue is valid and that no other
            // thread uses it. This is the only reference to the field at this time.
            each(unsafe { &mut *(*queue).pair.rx });
        }
    }
}

impl Wakeable for Sources<'_> {
    fn arm(&mut self) {
        self.each(|rx| rx.arm());
    }

    fn disarm(&mut self) {
        self.each(|rx| rx.disarm());
    }

    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        for &queue in self.queues {
            // SAFETY: `ringpass_wait` checked that it is not NULL; its caller says that the queue is valid and that no other
            // thread uses it during the call, which `self` does not outlive. No mutable reference to the field exists then.
            let rx: &'a dyn RxQueue = unsafe { &*(*queue).pair.rx };
            rx.wake_sources(each);
        }
        each(WakeSource::At(Instant::now() + self.limit));
    }
}

/// Ends a round of a loop that polls `count` queues. `moved` is how many packets the round has received. If there were some, this
/// returns at once. Otherwise it spins for a while, in several calls, and then sleeps until one of the queues may have packets,
/// for at most `limit_us` microseconds, and at most 0.1 s. Returns 0, or a negative code. The time spent polling adapts to the traffic, and
/// where packets come in a steady stream it sleeps for the latency budget (ringpass_config_set_latency_budget) so that some collect;
/// with ringpass_config_set_poll this never sleeps. A signal ends a sleep.
///
/// The loop calls this after each round, with the same queues in the same order.
///
/// # Safety
/// `queues` points to `count` different queues of ports that are open, which no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_wait(queues: *const *mut Queue, count: usize, moved: usize, limit_us: u32) -> c_int {
    result(|| {
        if queues.is_null() || count == 0 {
            return Err(Failure::invalid("there are no queues to wait for"));
        }
        // SAFETY: `queues` is not NULL, and the caller says that there are `count` pointers.
        let queues = unsafe { std::slice::from_raw_parts(queues, count) };
        if queues.iter().any(|queue| queue.is_null()) {
            return Err(Failure::invalid("a queue is NULL"));
        }
        let limit = Duration::from_micros(limit_us.into());
        // SAFETY: the queue is not NULL, and the caller says that it is valid and that no other thread uses it. `Sources` makes
        // references to the receiving queues only, not to this field.
        let idle = unsafe { &mut (*queues[0]).idle };
        idle.after(moved, &mut [&mut Sources { queues, limit }]);
        Ok(0)
    })
}
