//! The thread that notices a back-end's end and looks for the next one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringpass_port::Error;
use ringpass_vhost_user::SessionError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::card::{Card, event};
use crate::door::Nobody;
use crate::session::Failure;

/// How long to wait between attempts, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// The thread's handle.
pub(crate) struct Control {
    stopped: AtomicBool,
    /// Readable when it is to end.
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { stopped: AtomicBool::new(false), wake: event()?, thread: Mutex::default() })
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Never full, as nobody else writes to it.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // It may be the thread itself that drops the last queue.
        if let Some(thread) = thread.filter(|handle| handle.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits for a descriptor to be readable, or the end; with a limit, no longer.
    fn wait(&self, descriptor: Option<impl AsFd>, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a short time"));
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        // An interruption is as good as a time that is over.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// Starts the thread, once.
pub(crate) fn start(card: &Arc<Card>) {
    let mut thread = card.control.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() && !card.control.stopped() {
        let body = {
            let card = card.clone();
            move || watch(&card)
        };
        let started = thread::Builder::new().name("virtio-user".into()).spawn(body);
        *thread = Some(started.expect("the system has a thread for each port"));
    }
}

fn watch(card: &Card) {
    let (mut pause, mut told) = (PAUSE[0], String::new());
    while !card.control.stopped() && card.failure().is_none() {
        if let Some(socket) = card.socket() {
            card.control.wait(Some(socket), None);
            card.check();
            (pause, told) = (PAUSE[0], String::new());
            continue;
        }
        let trouble = match card.door.try_meet() {
            Ok(Some(socket)) => match card.revive(socket) {
                Ok(()) => continue,
                Err(Failure::Never(why)) => {
                    card.fail(why);
                    continue;
                }
                // It has died while it waited to be let in; the next one may wait behind it.
                Err(Failure::Session(SessionError::Closed)) if card.door.listens() => continue,
                Err(Failure::Session(why)) => Some(format!("the back-end has come back, but {why}")),
            },
            Ok(None) if card.door.listens() => {
                let (descriptor, limit) = card.door.wait_on();
                card.control.wait(descriptor, limit);
                continue;
            }
            Ok(None) | Err(Nobody::Absent(_)) => None,
            Err(Nobody::Failed(why)) => Some(why),
        };
        if let Some(why) = trouble.filter(|why| *why != told) {
            warn!("{}: {why}; trying again", card.name);
            told = why;
        }
        card.control.wait(None::<OwnedFd>, Some(pause));
        pause = (pause * 2).min(PAUSE[1]);
    }
}
