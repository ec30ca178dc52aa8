//! The wait behind `poll`, `select` and `epoll_wait`: for ports and other descriptors together.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libc::{POLLERR, c_short, pollfd};
use ringpass_port::{Pause, sleep_precisely};
use rustix::io::Errno;

use crate::open::Open;
use crate::wait_guard::WaitGuard;

/// A descriptor of `/dev/netmap` that is waited for.
pub struct Watched {
    /// The open file.
    pub open: Arc<Open>,
    /// Requested events of `poll`.
    pub events: c_short,
    /// Reported events of `poll`.
    pub revents: c_short,
    /// The [`generation`](crate::registered::RegisteredPort::generation) that was reported last, for
    /// edge-triggered events: nothing is reported until it changes. `None` to report the current state.
    pub last_seen: Option<u64>,
}

impl Watched {
    /// Creates one whose current state is reported.
    pub fn new(open: Arc<Open>, events: c_short) -> Self {
        Self { open, events, revents: 0, last_seen: None }
    }

    /// Returns whether it is this open file.
    pub fn open_is(&self, open: &Weak<Open>) -> bool {
        Arc::as_ptr(&self.open) == open.as_ptr()
    }

    /// Polls it. Returns whether there are events.
    fn poll_events(&mut self) -> bool {
        self.revents = match self.open.port() {
            None => POLLERR,
            Some(port) => {
                let revents = port.poll_events(self.events);
                if self.last_seen.is_some_and(|last_seen| port.generation(self.events) == last_seen) {
                    0
                } else {
                    revents
                }
            }
        };
        self.revents != 0
    }
}

/// Blocks in the kernel, with the program's signal mask: the C library's `ppoll`. Without a limit it blocks for
/// ever.
pub type Sleep<'a> = &'a mut dyn FnMut(&mut [pollfd], Option<Duration>) -> Result<usize, Errno>;

/// A blocked thread rechecks its ports at this interval: other processes that share their rings may have
/// withdrawn the request to be woken.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
const NOW: Option<Duration> = Some(Duration::ZERO);

/// Waits until one of the descriptors has events, for at most `limit`, or for ever without one. The events are
/// stored in `watched` and `others`. Errors are those of `sleep`.
pub fn wait(
    watched: &mut [Watched],
    others: &mut [pollfd],
    limit: Option<Duration>,
    sleep: Sleep<'_>,
) -> Result<(), Errno> {
    others.iter_mut().for_each(|other| other.revents = 0);
    if poll_events(watched) || limit == NOW {
        tell_policy(watched);
        return poll_now(others, sleep);
    }
    let start = Instant::now();
    let left = || limit.map(|limit| limit.saturating_sub(start.elapsed()));
    // Spinning polls ports only.
    if others.is_empty() && spin(watched, &left) {
        tell_policy(watched);
        return Ok(());
    }
    let sleeping: Vec<_> = watched.iter().map(|watched| (watched.open.clone(), watched.events)).collect();
    let ports = sleeping.iter().filter_map(|(open, events)| Some((open.port()?, *events)));
    let waiters = ports.map(|(port, events)| WaitGuard::new(port, events)).collect::<Result<Vec<_>, _>>()?;
    let mut fds = others.to_vec();
    fds.extend(waiters.iter().map(|waiter| pollfd { fd: waiter.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }));
    let done = loop {
        if poll_events(watched) {
            break poll_now(others, sleep);
        }
        let left = left();
        if left == NOW {
            break Ok(());
        }
        let woken = sleep(&mut fds, Some(left.unwrap_or(RECHECK_INTERVAL).min(RECHECK_INTERVAL)));
        if let Err(errno) = woken {
            break Err(errno);
        }
        let (seen, heard) = fds.split_at(others.len());
        for (waiter, _) in waiters.iter().zip(heard).filter(|(_, heard)| heard.revents != 0) {
            waiter.heard();
        }
        if seen.iter().any(|fd| fd.revents != 0) {
            others.copy_from_slice(seen);
            poll_events(watched);
            break Ok(());
        }
    };
    tell_policy(watched);
    done
}

/// Polls all of them, even if the first is ready, so that frames of each are sent.
fn poll_events(watched: &mut [Watched]) -> bool {
    watched.iter_mut().fold(false, |ready, watched| watched.poll_events() | ready)
}

/// Polls the other descriptors without blocking.
fn poll_now(others: &mut [pollfd], sleep: Sleep<'_>) -> Result<(), Errno> {
    if others.is_empty() { Ok(()) } else { sleep(others, NOW).map(drop) }
}

/// Waits without blocking, as long as the policy of the first port wants it. Returns whether the wait is over.
fn spin(watched: &mut [Watched], left: &dyn Fn() -> Option<Duration>) -> bool {
    let Some(first) = watched.first().map(|first| first.open.clone()) else { return false };
    let Some(port) = first.port() else { return false };
    loop {
        match port.port().waiting().pause() {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Yield => port.port().waiting().let_others_run(),
            Pause::Collect(time) if left().is_none_or(|left| time < left) => sleep_precisely(time),
            Pause::Collect(_) | Pause::Block => return false,
        }
        if poll_events(watched) || left() == NOW {
            return true;
        }
    }
}

/// Tells the policy of the first port how many slots were found, in all ports.
fn tell_policy(watched: &[Watched]) {
    let slots = |watched: &Watched| watched.open.port().map_or(0, |port| port.slots(watched.revents));
    if let Some(port) = watched.first().and_then(|first| first.open.port()) {
        port.port().waiting().found(watched.iter().map(slots).sum());
    }
}

#[cfg(test)]
mod tests {
    use libc::POLLIN;

    use super::*;

    /// A descriptor without a port reports an error at once; the others are polled without blocking.
    #[test]
    fn without_a_port_nobody_waits() {
        let mut watched = [Watched::new(Arc::new(Open::disconnected()), POLLIN)];
        let mut others = [pollfd { fd: 0, events: POLLIN, revents: 77 }];
        let mut limits = Vec::new();
        let mut sleep = |fds: &mut [pollfd], limit| {
            limits.push(limit);
            fds[0].revents = POLLIN;
            Ok(1)
        };
        assert_eq!(wait(&mut watched, &mut others, None, &mut sleep), Ok(()));
        assert_eq!((watched[0].revents, others[0].revents, limits), (POLLERR, POLLIN, vec![NOW]));
    }

    /// Waiting for other descriptors alone ends at the limit, or with an error.
    #[test]
    fn sleeps_end_in_time() {
        let mut others = [pollfd { fd: 0, events: POLLIN, revents: 0 }];
        let (start, limit) = (Instant::now(), Duration::from_millis(30));
        let mut sleep = |_: &mut [pollfd], limit: Option<Duration>| {
            std::thread::sleep(limit.unwrap().min(Duration::from_millis(7)));
            Ok(0)
        };
        assert_eq!(wait(&mut [], &mut others, Some(limit), &mut sleep), Ok(()));
        assert!((limit..limit * 20).contains(&start.elapsed()), "{:?}", start.elapsed());
        assert_eq!(wait(&mut [], &mut others, None, &mut |_, _| Err(Errno::INTR)), Err(Errno::INTR));
    }
}
