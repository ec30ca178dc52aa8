//! Threads that block until a port has something for them.
//!
//! Each has an epoll instance of its own (in a [`WaitGuard`](crate::wait_guard::WaitGuard)) that watches the port's eventfd edge-triggered.
//! Nobody reads the eventfd, so each of several blocked threads sees every signal, however fast the others are.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The blocked threads of a port.
#[derive(Default)]
pub struct WaitQueue(Mutex<State>);

/// State of the queue, of which a fork's child knows nothing.
#[derive(Default)]
pub struct State {
    /// Value of `FORKS` for which this state is valid.
    pub forks: u64,
    /// Number of threads that wait for Tx rings, and for Rx rings.
    pub waiting: [u32; 2],
    /// Epoll instances of threads that have woken up, to be reused.
    pub waiters: Vec<OwnedFd>,
}

/// Number of forks that lead from the process that loaded this library to this one.
pub static FORKS: AtomicU64 = AtomicU64::new(0);

impl WaitQueue {
    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let forks = FORKS.load(Relaxed);
        if state.forks != forks {
            // The old state describes threads of the parent, and their epoll instances.
            *state = State { forks, ..State::default() };
        }
        state
    }
}
