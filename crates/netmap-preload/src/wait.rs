//! The one wait that `poll`, `select` and `epoll_wait` are: for ports and for other descriptors at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLERR, c_short, pollfd};
use netmap::Patience;
use rustix::io::Errno;

use crate::open::Open;
use crate::sleepers::Waiter;

/// A descriptor of `/dev/netmap` that is waited for.
pub struct Watched {
    /// What it stands for.
    pub open: Arc<Open>,
    /// What `poll` is asked.
    pub events: c_short,
    /// What it says.
    pub revents: c_short,
    /// Not the same again: only if the [`news`](crate::registered::Registered::news) are others.
    pub known: Option<u64>,
}

impl Watched {
    /// One whose state counts, not its changes.
    pub fn new(open: Arc<Open>, events: c_short) -> Self {
        Self { open, events, revents: 0, known: None }
    }

    /// Looks. Whether there is something to say.
    fn look(&mut self) -> bool {
        self.revents = match self.open.port() {
            None => POLLERR,
            Some(port) => {
                let revents = port.look(self.events);
                if self.known.is_some_and(|known| port.news(self.events) == known) { 0 } else { revents }
            }
        };
        self.revents != 0
    }
}

/// A sleep in the kernel, with the program's signal mask: the C library's `ppoll`. For ever without a limit.
pub type Sleep<'a> = &'a mut dyn FnMut(&mut [pollfd], Option<Duration>) -> Result<usize, Errno>;

/// Should other processes share a port's rings, they may have said that nobody sleeps: sleepers look around so often.
const LOOK_AROUND: Duration = Duration::from_millis(500);
const NOW: Option<Duration> = Some(Duration::ZERO);

/// Waits until one of them has something to say, or for as long as said; for ever without a limit. What they say is in them.
/// Errors are those of `sleep`.
pub fn wait(
    watched: &mut [Watched],
    others: &mut [pollfd],
    limit: Option<Duration>,
    sleep: Sleep<'_>,
) -> Result<(), Errno> {
    others.iter_mut().for_each(|other| other.revents = 0);
    if look(watched) || limit == NOW {
        return glance(others, sleep);
    }
    let start = Instant::now();
    let left = || limit.map(|limit| limit.saturating_sub(start.elapsed()));
    // Nobody looks at the others in the meantime.
    if others.is_empty() && look_for_a_while(watched, &left) {
        return Ok(());
    }
    let sleeping: Vec<_> = watched.iter().map(|watched| (watched.open.clone(), watched.events)).collect();
    let ports = sleeping.iter().filter_map(|(open, events)| Some((open.port()?, *events)));
    let waiters = ports.map(|(port, events)| Waiter::new(port, events)).collect::<Result<Vec<_>, _>>()?;
    let mut fds = others.to_vec();
    fds.extend(waiters.iter().map(|waiter| pollfd { fd: waiter.fd(), events: libc::POLLIN, revents: 0 }));
    let asleep = Instant::now();
    let done = loop {
        if look(watched) {
            break glance(others, sleep);
        }
        let left = left();
        if left == NOW {
            break Ok(());
        }
        let woken = sleep(&mut fds, Some(left.unwrap_or(LOOK_AROUND).min(LOOK_AROUND)));
        if let Err(errno) = woken {
            break Err(errno);
        }
        let (seen, heard) = fds.split_at(others.len());
        for (waiter, _) in waiters.iter().zip(heard).filter(|(_, heard)| heard.revents != 0) {
            waiter.heard();
        }
        if seen.iter().any(|fd| fd.revents != 0) {
            others.copy_from_slice(seen);
            look(watched);
            break Ok(());
        }
    };
    if let [one] = &*watched
        && let Some(port) = one.open.port()
    {
        port.patience.slept(asleep.elapsed());
    }
    done
}

/// Looks at all: frames of each are sent.
fn look(watched: &mut [Watched]) -> bool {
    watched.iter_mut().fold(false, |ready, watched| watched.look() | ready)
}

/// What the others say now.
fn glance(others: &mut [pollfd], sleep: Sleep<'_>) -> Result<(), Errno> {
    if others.is_empty() { Ok(()) } else { sleep(others, NOW).map(drop) }
}

/// A sleep costs more than some looks.
fn look_for_a_while(watched: &mut [Watched], left: &dyn Fn() -> Option<Duration>) -> bool {
    let ports = watched.iter().filter_map(|watched| watched.open.port());
    let rounds = ports.map(|port| port.patience.rounds()).max().unwrap_or(0);
    for round in 0..rounds {
        Patience::pass(round);
        if look(watched) || left() == NOW {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use libc::POLLIN;

    use super::*;

    /// A descriptor without a port is ready with an error; the others are looked at without waiting.
    #[test]
    fn without_a_port_nobody_waits() {
        let mut watched = [Watched::new(Arc::new(Open::nowhere()), POLLIN)];
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

    /// Others alone are waited for as long as said, and not longer; what goes wrong ends it.
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
