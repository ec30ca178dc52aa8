//! The thread that notices the end of a back-end and connects to the next one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringpass_port::Error;
use ringpass_vhost_user::SessionError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::device::{UserDevice, event};
use crate::session::Failure;
use crate::source::NoBackend;

/// First and longest pause between connection attempts.
const RECONNECT_BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Handle of the thread.
pub(crate) struct ReconnectThread {
    stopped: AtomicBool,
    /// Eventfd that becomes readable when the thread is to end.
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReconnectThread {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { stopped: AtomicBool::new(false), wake: event()?, thread: Mutex::default() })
    }

    /// Tells the thread to end.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // Only this process writes to the eventfd, so it never blocks.
        #[expect(clippy::disallowed_methods, reason = "nobody else has this eventfd")]
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Ends the thread and waits for it.
    pub(crate) fn end(&self) {
        self.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread itself may drop the last queue, and cannot join itself.
        if let Some(thread) = thread.filter(|handle| handle.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until `descriptor` is readable, the thread is to end, or `limit` has passed.
    fn wait(&self, descriptor: Option<impl AsFd>, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a short time"));
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        // An interrupted wait is treated as a timeout.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// Starts the thread, unless it is running or has been stopped.
pub(crate) fn start(device: &Arc<UserDevice>) {
    let mut thread = device.reconnect_thread.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() && !device.reconnect_thread.stopped() {
        let body = {
            let device = device.clone();
            move || watch(&device)
        };
        let started = thread::Builder::new().name("virtio-user".into()).spawn(body);
        *thread = Some(started.expect("the system has a thread for each port"));
    }
}

fn watch(device: &UserDevice) {
    let (mut backoff, mut told) = (RECONNECT_BACKOFF[0], String::new());
    while !device.reconnect_thread.stopped() && device.failure().is_none() {
        if let Some(socket) = device.socket() {
            device.reconnect_thread.wait(Some(socket), None);
            device.check();
            (backoff, told) = (RECONNECT_BACKOFF[0], String::new());
            continue;
        }
        let trouble = match device.source.try_connect() {
            Ok(Some(socket)) => match device.reconnect(socket) {
                Ok(()) => continue,
                Err(Failure::Permanent(why)) => {
                    device.fail(why);
                    continue;
                }
                // The back-end died in the accept queue; the next one may be behind it.
                Err(Failure::Session(SessionError::Closed)) if device.source.listens() => continue,
                Err(Failure::Session(why)) => Some(format!("the back-end has come back, but {why}")),
            },
            Ok(None) if device.source.listens() => {
                let (descriptor, limit) = device.source.wait_on();
                device.reconnect_thread.wait(descriptor, limit);
                continue;
            }
            Ok(None) | Err(NoBackend::Absent(_)) => None,
            Err(nobody) => Some(nobody.to_string()),
        };
        if let Some(why) = trouble.filter(|why| *why != told) {
            warn!("{}: {why}; trying again", device.name);
            told = why;
        }
        device.reconnect_thread.wait(None::<OwnedFd>, Some(backoff));
        backoff = (backoff * 2).min(RECONNECT_BACKOFF[1]);
    }
}
