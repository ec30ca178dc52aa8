//! What every port is, whatever lies behind it: queues of packets, statistics, link state, an address.

#![forbid(unsafe_code)]

mod address;
mod error;
mod idle;
mod mac;
mod port;

pub use address::{Address, FaultsConfig, ModelConfig, PcapConfig, ReplaySpeed};
pub use error::Error;
pub use idle::Idle;
pub use mac::MacAddress;
pub use port::{Link, Port, PortConfig, Queues, RxQueue, State, Stats, TxQueue};
