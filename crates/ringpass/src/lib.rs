//! Packet I/O in user space: network cards, virtual machines, netmap and the kernel as ports of one application.
//!
//! # From `open` to a descriptor
//!
//! An application opens **ports**, takes their **queues**, and moves **bursts** of **packets** between them:
//!
//! ```no_run
//! use ringpass::{Burst, Config, Idle};
//!
//! let mut ports = ringpass::open(["0000:01:00.0", "tap:a"], &Config::default())?;
//! let [mut a, mut b] = ports.take_pair()?;
//! let (mut burst, mut idle) = (Burst::new(32), Idle::default());
//! loop {
//!     let received = a.rx.rx_burst(&mut burst);
//!     b.tx.tx_burst(&mut burst);
//!     burst.clear();
//!     idle.after(received, &mut [&mut *a.rx]);
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), ringpass::Error>(())
//! ```
//!
//! 1. [`open()`] parses each address ([`Address`] lists all kinds), creates one pool of packet buffers, and brings up a driver or
//!    another kind of port for each. [`Config`] says how; its default suits most applications.
//! 2. [`Ports`] is the control side: statistics, link, state. [`Ports::take_pair`] takes each [`QueuePair`], which belongs to one
//!    thread at a time.
//! 3. [`RxQueue::rx_burst`] moves received packets into a [`Burst`], without waiting. In a driver this is one function: it reads
//!    descriptors that the card has written back, and posts new buffers (`ringpass_intel`, `rx.rs`).
//! 4. A [`Packet`] is a handle that owns its buffer. Dropping it, on any thread, returns the buffer to the [`Mempool`].
//! 5. [`TxQueue::tx_burst`] takes packets from the front of the burst, writes descriptors, and rings the doorbell. What the queue has no
//!    room for stays in the burst.
//! 6. [`Idle`] spins for a while when nothing comes, then sleeps until the card, guest or kernel has something.
//!
//! Without a card, `model:PORT` is a software 82599 that the same driver drives; its wire ends at another port:
//! `model:tap:left`, or `model:null`.
//!
//! # What else there is
//!
//! - [`Workers`]: pinned threads with counters, as the program `ringpass` uses them.
//! - [`cable()`]: rings between workers, for pipelines.
//! - [`sandbox`]: giving up privileges once all ports are open.
//! - [`control`]: a socket by which a running program tells its state, and is changed.
//! - [`Port`], [`RxQueue`], [`TxQueue`], [`Wakeable`]: the traits that a port of one's own implements.
//! - [`switch`]: a learning switch between any ports. [`netmap`]: netmap's rings, and programs' ports on them.
//!   [`models`]: the cards in software, to be stepped by hand.
//! - [`cards`] and [`drivers`]: which network cards there are, and who drives them.

#![deny(unsafe_code, clippy::print_stdout, clippy::print_stderr)]

mod cable;
pub mod cards;
mod config;
pub mod control;
pub mod drivers;
mod flow_table;
mod map;
mod model;
mod notice;
pub mod open;
pub mod pass_on;
mod ports;
mod run;
pub mod sandbox;
pub mod signals;
mod worker;

pub use cable::cable;
pub use config::Config;
pub use flow_table::FlowTable;
pub use map::take_queue_pairs;
pub use model::{ixgbe_counters, model_stepper, virtio_counters};
pub use notice::Notices;
#[doc(inline)]
pub use open::{open, open_all};
pub use ports::{Ports, check_ports};
pub use ringpass_host_ports::{KernelInterface, XdpFeatures, kernel_interface};
pub use ringpass_memory::{
    Buffer, Burst, Cache, Drain, Flags, Headers, L4, MAX_BATCH, Mempool, MempoolConfig, Packet, PageSize, RawBytes,
};
pub use ringpass_port::{
    Address, DEFAULT_LATENCY_BUDGET, Direction, Error, Holds, Idle, Link, MacAddress, Offloads, Port, PortConfig,
    PortDecorator, Protocol, QueuePair, RingStatus, Rule, RxDecorator, RxQueue, Spread, State, Stats, Sum, Timer,
    TxQueue, WakeSource, Wakeable, complete_checksum, copy_packet, fill_checksum, headers, parse_headers,
};
pub use worker::{ROUND_SIZES, Totals, Worker, Workers, cycles};
pub use {ringpass_models as models, ringpass_netmap as netmap, ringpass_switch as switch};
