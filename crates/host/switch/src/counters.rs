//! Per-port counters of the switch.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters with their names.
macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident $name:literal,)*) => {
        /// A counter of a port. Each frame that a port receives is counted once by the counters up to
        /// [`Counter::Invalid`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $counter,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$counter),*];

            /// Returns the counter's name in statistics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$counter => $name,)* }
            }
        }
    };
}

counters! {
    /// Received and sent to the one port where the destination is.
    Forwarded "switch_forwarded",
    /// Received and sent to all ports that may get it.
    Flooded "switch_flooded",
    /// Received and passed to a fixed port without a lookup.
    Passed "switch_passed",
    /// Received and dropped: the flooding limit was exceeded.
    Limited "switch_limited",
    /// Received and dropped: the destination is at the same port.
    Local "switch_local",
    /// Received and dropped: the destination is in the same isolation group.
    Isolated "switch_isolated",
    /// Received and dropped: no port that may get it is up.
    Nowhere "switch_nowhere",
    /// Received and dropped: the source is not allowed at this port, or is configured for another one.
    Spoofed "switch_spoofed",
    /// Received and dropped: this port is not a member of the VLAN.
    Vlan "switch_vlan",
    /// Received and dropped: sent to a link-local group address (IEEE 802.1Q, table 8-1).
    Reserved "switch_reserved",
    /// Received and dropped: too short, or sent from a group address.
    Invalid "switch_invalid",
    /// Flooded or limited frames whose destination is a single, unknown station.
    Unknown "switch_unknown",
    /// Stations learned at this port.
    Learned "switch_learned",
    /// Stations that moved to this port from another one.
    Moved "switch_moved",
    /// Frames whose source was not learned because it moves too often.
    Damped "switch_damped",
    /// Stations removed from the table to make room for one at this port.
    Evicted "switch_evicted",
    /// Frames whose source was not learned because its bucket of the table is full of stations that this port
    /// may not replace.
    TableFull "switch_table_full",
    /// Frames that could not be copied or tagged for this port because no buffer was free.
    NoBuffer "switch_no_buffer",
    /// Frames dropped because this port's Tx queue was full.
    TxDrops "switch_tx_drops",
}

/// Counters of one port in one datapath, which alone writes them.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct PortCounters([AtomicU64; Counter::ALL.len()]);

impl PortCounters {
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        let counter = &self.0[counter as usize];
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// Counters of a port, summed over all datapaths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Counter::ALL.len()]);

impl Counts {
    pub(crate) fn sum<'a>(counters: impl Iterator<Item = &'a PortCounters>) -> Self {
        let mut sum = Self::default();
        for counters in counters {
            sum.0.iter_mut().zip(&counters.0).for_each(|(sum, n)| *sum += n.load(Ordering::Relaxed));
        }
        sum
    }

    /// Returns one counter.
    pub fn of(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Returns all counters with their names.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter.name(), self.of(counter)))
    }
}
