//! What every port is, whatever lies behind it: queues of packets, statistics, link state, an address.

#![forbid(unsafe_code)]

mod address;
mod chain;
mod error;
mod idle;
mod length;
mod mac;
mod mac_text;
mod offloads;
mod patience;
mod port;
mod software;
mod status;
mod steering;
mod turns;

pub use address::{Address, FaultsConfig, ModelConfig, PcapConfig, ReplaySpeed, Role, VhostConfig, VirtioUserConfig};
pub use chain::{chain, copy_flags};
pub use error::Error;
pub use idle::{Idle, Wake, Wakeable};
pub use length::{LONGEST_HEADER, frame_passes, passes};
pub use mac::MacAddress;
pub use offloads::Offloads;
pub use patience::Patience;
pub use port::{Link, Port, PortConfig, Queues, RxQueue, State, Stats, TxQueue};
pub use software::{Software, Sum, complete_checksum, fill_checksum, parse_headers};
pub use status::{Counters, Status};
pub use steering::{Protocol, Rule, Spread};
pub use turns::Turns;
