//! Communication over unix sockets between processes that do not trust each other: a listener, a stream of
//! messages with file descriptors, and eventfds. Nothing here blocks on the peer, whatever it does.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod connection_lost;
mod connector;
mod credentials;
mod elsewhere;
#[allow(unsafe_code, reason = "system calls that no crate wraps")]
mod event_notifier;
mod event_waiter;
#[allow(unsafe_code, reason = "a process with a file table of its own")]
mod fd_receiver;
pub mod inherited;
mod interrupt;
mod limit;
mod listener;
mod message_loop;
mod socket;
mod socket_access;
#[allow(unsafe_code, reason = "descriptors that were there before the program")]
pub mod stored;
mod stream;
mod thread_usage;
mod wake_fd;

pub use connection_lost::{ConnectionLost, MAX_FDS};
pub use connector::{connect, has_helper, register_connect_helper, run_connect_helper, with_connections};
pub use credentials::Credentials;
pub use elsewhere::{LARGE_MEMORY, drop_elsewhere, wait_for_drops};
pub use event_notifier::{EventNotifier, NotEventfd, SLOW_PEER_PAUSE, check_eventfd, prepare_notifiers};
pub use event_waiter::EventWaiter;
pub use fd_receiver::{send_descriptors, start_fd_receiver};
pub use interrupt::{WAITS_END, check_interrupt, wait_ready};
pub use limit::raise_descriptor_limit;
pub use listener::{AcceptWait, Listener};
pub use message_loop::MessageLoop;
pub use socket::{Connecting, Error};
pub use socket_access::{SocketAccess, SocketPlace};
pub use stream::{Descriptors, ReadStatus, Stream};
pub use thread_usage::ThreadUsage;
pub use wake_fd::WakeFd;
