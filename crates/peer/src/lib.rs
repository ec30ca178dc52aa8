//! What processes that do not trust each other say over a unix socket: a place where one listens, a stream of messages
//! with file descriptors, eventfds. Whatever the peer does, nothing here waits for it.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod closing;
mod connector;
mod credentials;
mod exchange;
mod kick;
mod limit;
mod listener;
#[allow(unsafe_code, reason = "system calls that no crate wraps")]
mod signal;
mod stream;
mod waiter;

pub use connector::{connect_through, has_helper, serve_connects};
pub use credentials::Credentials;
pub use exchange::{Exchange, Overdue};
pub use kick::Kick;
pub use limit::raise_descriptor_limit;
pub use listener::{Connecting, Error, Listener, Waiting, connect};
pub use signal::{NoEventfd, Signal, check_eventfd, prepare_signals};
pub use stream::{Arrived, Lost, MAX_FDS, Stream, receive_from};
pub use waiter::Waiter;
