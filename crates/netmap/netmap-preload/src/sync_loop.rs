//! The loop that synchronises the rings of a port in [CSB mode](crate::csb_mode), `NETMAP_REQ_SYNC_KLOOP_START`. The thread that makes
//! the request runs it, until another thread stops it.
//!
//! With eventfds of all rings it sleeps until the program or the other side of a ring has something for it, and only then says so in
//! the CSB; without, it sleeps as long as the program has asked for between two rounds. In netmap's direct modes a ring is
//! synchronised by whoever signals its eventfd; here the loop does it at once, and always requests kicks for those rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netmap::csb::Csb;
use netmap::{Direction, PortRing, SyncLoop};
use ringpass_ipc::{EventNotifier, EventWaiter};
use ringpass_port::{Pause, WaitPolicy, sleep_precisely};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::csb_mode::rings;
use crate::indirect::copy_frames_until;
use crate::option_header::OptionHeader;
use crate::options::Options;
use crate::refusal::Refusal;
use crate::registered::{IN, OUT, RegisteredPort};
use crate::user_memory::UserMemory;
use crate::wait_guard::WaitGuard;

/// Longest sleep without an event.
const MAX_SLEEP: Duration = Duration::from_secs(3);
/// Longest sleep that a program may ask for, in microseconds.
const MAX_SLEEP_US: u32 = 1_000_000;
/// Interval at which a loop that nobody wakes checks whether the serving process is still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How a loop and its program wake each other, for one ring.
struct RingEvents {
    /// Signalled by the program.
    kick: Option<EventWaiter>,
    /// Signalled by the loop.
    call: Option<EventNotifier>,
}

/// What a program requests of a loop.
struct Asked {
    /// Pause between two rounds, where the loop cannot be woken.
    pause: Duration,
    /// For each ring; empty without the option.
    events: Vec<RingEvents>,
    /// Directions that are to be synchronised directly.
    direct: [bool; 2],
}

impl Asked {
    /// Returns whether the loop can be woken for each ring.
    fn wakes(&self) -> bool {
        !self.events.is_empty() && self.events.iter().all(|events| events.kick.is_some())
    }
}

/// Runs the loop until it is stopped. `pause` is what the program has written, in microseconds.
///
/// # Errors
/// `EINVAL`, as from netmap, for a pause of more than a second, without CSB mode, and for invalid options; `ENXIO` without a port; `EBUSY` if a
/// loop runs. `EIO` if the serving process has ended.
pub fn run(
    registered: Option<&RegisteredPort>,
    pause: u32,
    options: &mut Options,
    program: &impl UserMemory,
) -> Result<(), Refusal> {
    let invalid = |why: &str| Refusal::new(Errno::INVAL, why);
    if pause > MAX_SLEEP_US {
        return Err(invalid("a loop that sleeps for more than a second"));
    }
    let registered = registered.ok_or_else(|| Refusal::new(Errno::NXIO, "a loop for a descriptor without a port"))?;
    let csb = registered.csb().ok_or_else(|| invalid("a loop for a port that is not in CSB mode"))?;
    let os = |error: std::io::Error| Refusal::new(Errno::NFILE, error);
    ringpass_ipc::prepare_notifiers().map_err(os)?;
    let stop = EventWaiter::new().map_err(os)?;
    let running = registered.sync_loop.begin(stop.signal())?;
    let direct = read_mode(options, program)?;
    let events = read_events(rings(registered.port()).count(), direct, options, program)?;
    let asked = Asked { pause: Duration::from_micros(pause.into()), events, direct };
    let ended = synchronise(registered, &csb, &asked, &stop);
    drop(running);
    ended
}

/// Reads the directions that are to be synchronised directly: Tx, and Rx.
fn read_mode(options: &mut Options, program: &impl UserMemory) -> Result<[bool; 2], Refusal> {
    let Some((at, _)) = options.payload(OptionHeader::LOOP_MODE) else { return Ok([false; 2]) };
    let mode = u32::from_le_bytes(program.read(at)?);
    let known = match mode {
        0..4 => Ok([mode & 1 != 0, mode & 2 != 0]),
        _ => Err(Refusal::new(Errno::INVAL, format!("mode {mode:#x} of a loop, which does not exist"))),
    };
    options.used(OptionHeader::LOOP_MODE, known)
}

fn read_events(
    rings: usize,
    direct: [bool; 2],
    options: &mut Options,
    program: &impl UserMemory,
) -> Result<Vec<RingEvents>, Refusal> {
    let Some((at, len)) = options.payload(OptionHeader::EVENTFDS) else { return Ok(Vec::new()) };
    let invalid = |why: String| Err(Refusal::new(Errno::INVAL, why));
    let events = if len != 8 * rings as u64 {
        invalid(format!("eventfds of {} rings, where the port has {rings}", len / 8))
    } else {
        let each = |ring: usize| take_events(program.read(at.wrapping_add(8 * ring as u64))?, program);
        (0..rings).map(each).collect::<Result<Vec<_>, Refusal>>()
    };
    let events = events.and_then(|events| {
        if direct != [false; 2] && events.iter().any(|events| events.kick.is_none()) {
            return invalid("direct synchronisation needs an eventfd of each ring".into());
        }
        Ok(events)
    });
    options.used(OptionHeader::EVENTFDS, events)
}

/// Takes the eventfds of one ring: the program's kicks, and the loop's calls. Negative numbers are none.
fn take_events(numbers: [u8; 8], program: &impl UserMemory) -> Result<RingEvents, Refusal> {
    let [kick, call] = [0, 4].map(|at| i32::from_le_bytes(std::array::from_fn(|n| numbers[at + n])));
    let duplicate =
        |fd: i32| -> Result<Option<OwnedFd>, Errno> { if fd < 0 { Ok(None) } else { program.duplicate(fd).map(Some) } };
    let not_one = |fd: i32| Refusal::new(Errno::INVAL, format!("descriptor {fd} is not an eventfd"));
    let kick = duplicate(kick)?.map(|fd| EventWaiter::on(fd).map_err(|_| not_one(kick))).transpose()?;
    let call = duplicate(call)?.map(|fd| EventNotifier::new(fd).map_err(|_| not_one(call))).transpose()?;
    Ok(RingEvents { kick, call })
}

/// The rings of a loop.
struct Rings<'a> {
    rings: SyncLoop<'a>,
    registered: &'a RegisteredPort,
    asked: &'a Asked,
}

impl Rings<'_> {
    /// Synchronises each ring once. Returns by how many slots they have moved.
    fn round(&mut self) -> u32 {
        let before_tx = |ring: &PortRing, head| {
            if self.registered.is_indirect() {
                copy_frames_until(ring, head, self.registered.port().buffers());
            }
        };
        let call = |entry| {
            if let Some(call) = self.asked.events.get(entry).and_then(|events: &RingEvents| events.call.as_ref()) {
                call.notify();
            }
        };
        self.rings.round(before_tx, call)
    }

    /// Says in the CSB of each ring whether the loop is to be kicked.
    fn request_kicks(&self, wanted: bool) {
        let [tx, rx] = self.asked.direct;
        self.rings.request_kicks(wanted, |direction| if direction == Direction::Tx { tx } else { rx });
    }
}

fn synchronise(registered: &RegisteredPort, csb: &Csb, asked: &Asked, stop: &EventWaiter) -> Result<(), Refusal> {
    let port = registered.port();
    let mut rings = Rings { rings: SyncLoop::new(port.tx(), port.rx(), csb), registered, asked };
    let is_stopped = || registered.sync_loop.is_stopped();
    let (wakes, mut policy) = (asked.wakes(), WaitPolicy::default());
    rings.request_kicks(false);
    let mut checked = Instant::now();
    // Slots that were found while it prepared to sleep.
    let mut found = 0;
    while !is_stopped() {
        if registered.is_lost() {
            return Err(Refusal::printed(Errno::IO, "the process that serves netmap ports is gone; the loop ends"));
        }
        if let slots @ 1.. = rings.round() + std::mem::take(&mut found) {
            policy.found(slots.into());
        } else if !wakes {
            pause(asked.pause);
            if checked.elapsed() > CHECK_INTERVAL {
                if registered.port().is_lost() {
                    registered.set_lost();
                }
                checked = Instant::now();
            }
        } else {
            match policy.pause() {
                Pause::Spin => std::hint::spin_loop(),
                Pause::Yield => policy.let_others_run(),
                Pause::Collect(time) => sleep_precisely(time),
                Pause::Block => found = sleep(&mut rings, stop)?,
            }
        }
    }
    rings.request_kicks(true);
    Ok(())
}

fn pause(time: Duration) {
    if time.is_zero() { std::thread::yield_now() } else { std::thread::sleep(time) }
}

/// Sleeps until the program, the other side of a ring or [`LoopControl::stop`](crate::loop_control::LoopControl::stop) wakes the loop. Returns by how many
/// slots the rings had moved before.
fn sleep(rings: &mut Rings<'_>, stop: &EventWaiter) -> Result<u32, Refusal> {
    let waiter = WaitGuard::new(rings.registered, IN | OUT)?;
    rings.request_kicks(true);
    let kicks: Vec<_> = rings.asked.events.iter().filter_map(|events| events.kick.as_ref()).collect();
    // What came before the requests.
    let found = rings.round();
    if found == 0 && !rings.registered.sync_loop.is_stopped() {
        let fds = [waiter.fd(), stop.as_fd()].into_iter().chain(kicks.iter().map(|kick| kick.as_fd()));
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd: BorrowedFd<'_>| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let limit = Timespec { tv_sec: MAX_SLEEP.as_secs() as i64, tv_nsec: 0 };
        // A signal ends it, too.
        let _ = poll(&mut fds, Some(&limit));
        let heard: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if heard[0] {
            waiter.heard();
        }
        kicks.iter().zip(&heard[2..]).filter(|(_, heard)| **heard).for_each(|(kick, _)| kick.clear());
    }
    rings.request_kicks(false);
    Ok(found)
}
