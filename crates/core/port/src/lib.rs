//! The interface of all ports: queues of packets, statistics, link state and addresses.

#![forbid(unsafe_code)]

mod address;
mod chain;
mod decorator;
mod error;
mod frame_filter;
mod frames;
mod hang;
pub mod headers;
mod idle;
pub mod lending;
mod length;
mod mac;
mod mac_text;
mod offloads;
mod port;
mod software;
mod status;
mod steering;
mod timer;
mod wait_policy;
mod yielding_mutex;

pub use address::{
    Address, FaultsConfig, ModelConfig, PcapConfig, ReplaySpeed, Role, VhostConfig, VirtioUserConfig, XdpConfig,
    XdpMode, XdpTransfer,
};
pub use chain::{chain, copy_flags, copy_packet};
pub use decorator::{PortDecorator, RxDecorator};
pub use error::Error;
pub use frame_filter::FrameFilter;
pub use frames::FrameSink;
pub use hang::{HangFlags, TX_HANG_TIMEOUT, TxWatchdog};
pub use idle::{Idle, WakeSource, Wakeable};
pub use length::{MAX_L2_HEADER_LEN, fits_mtu, frame_fits_mtu};
pub use mac::MacAddress;
pub use offloads::Offloads;
pub use port::{
    Direction, Holds, Link, Port, PortConfig, QueuePair, RingStatus, RxQueue, State, Stats, TxQueue, copy_packets,
};
pub use software::{SoftwareOffload, Sum, complete_checksum, ethertype, fill_checksum, parse_headers};
pub use status::{Counters, PortStatus};
pub use steering::{Protocol, Rule, Spread};
pub use timer::Timer;
pub use wait_policy::{DEFAULT_LATENCY_BUDGET, Pause, SharedWaitPolicy, WaitPolicy, sleep_precisely};
pub use yielding_mutex::YieldingMutex;
