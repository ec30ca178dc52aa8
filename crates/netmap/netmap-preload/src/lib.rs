//! Runs programs written for netmap unmodified: `LD_PRELOAD=libringpass_netmap.so PROGRAM`. Their requests to
//! `/dev/netmap` go to the process that serves netmap ports (`ringpass netmapd`), which is started if there is
//! none.
//!
//! `hooks` holds the functions of the C library that this one replaces; calls that do not concern netmap are
//! passed on ([`next`]). A descriptor of `/dev/netmap` is a connection to the serving process, so that the kernel ends it with its last
//! duplicate. [`table`] maps its number to the object behind it: an [`open`] and, once a port is registered, its rings ([`registered`]).
//! A number that the table does not have may have come from another process, or over `exec`; then the server is asked what it is.
//! `poll`, `select` and `epoll_wait` share one wait ([`wait`]) and differ in how they ask and answer
//! ([`select`], [`epoll`]).
//!
//! In CSB mode ([`csb_mode`]) only the loop that the program runs ([`sync_loop`]) synchronises the rings.
//!
//! Not supported: static programs and raw system calls.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[allow(unsafe_code, reason = "a mutex that is held over `fork`")]
mod change_lock;
mod control;
mod csb_mode;
mod epoll;
#[allow(unsafe_code, reason = "pages of the program that are replaced by those of a file")]
mod external_memory;
#[cfg(test)]
mod fuzz;
#[allow(unsafe_code, reason = "functions of the C library, with the pointers of programs")]
mod hooks;
#[allow(unsafe_code, reason = "a copy from an address that the program has written")]
mod indirect;
mod loop_control;
#[allow(unsafe_code, reason = "functions of the C library, by name")]
mod next;
mod open;
mod option_header;
mod options;
mod parameter;
mod refusal;
mod registered;
mod select;
mod start;
mod sync_loop;
mod table;
mod user_memory;
mod wait;
mod wait_guard;
mod wait_queue;
