//! A thread that ends when it is told to, also while it waits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ringpass_port::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::event::event;

/// A thread that waits for descriptors, and that ends when it is told to.
pub(crate) struct StoppableThread {
    stopped: AtomicBool,
    /// Eventfd that becomes readable when the thread is to end.
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StoppableThread {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self { stopped: AtomicBool::new(false), wake: event()?, thread: Mutex::default() })
    }

    /// Starts the thread, which runs `body`, unless it is running or has been stopped.
    pub(crate) fn start(&self, name: &str, body: impl FnOnce() + Send + 'static) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() && !self.stopped() {
            let started = thread::Builder::new().name(name.into()).spawn(body);
            *thread = Some(started.expect("the system has a thread for each port"));
        }
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

    /// Returns whether the thread is to end.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until `descriptor` is readable, the thread is to end, or `limit` has passed.
    pub(crate) fn wait(&self, descriptor: Option<impl AsFd>, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec::try_from(limit).expect("a short time"));
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(descriptor.as_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)));
        // An interrupted wait is treated as a timeout.
        let _ = poll(&mut fds, limit.as_ref());
    }
}
