//! What the switch counts, by port.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters with their names.
macro_rules! counters {
    ($($(#[$doc:meta])* $counter:ident $name:literal,)*) => {
        /// What is counted. Each frame that a port receives is counted as one of those up to [`Counter::Invalid`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $counter,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$counter),*];

            /// Its name in statistics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$counter => $name,)* }
            }
        }
    };
}

counters! {
    /// Received and sent to the one port where the destination is.
    Forwarded "switch_forwarded",
    /// Received and sent to all ports that may have it.
    Flooded "switch_flooded",
    /// Received and passed on to another port without a look.
    Passed "switch_passed",
    /// Received and dropped: flooding is limited.
    Limited "switch_limited",
    /// Received and dropped: the destination is at the same port.
    Local "switch_local",
    /// Received and dropped: the destination is in the same isolation group.
    Isolated "switch_isolated",
    /// Received and dropped: no port that may have it is up.
    Nowhere "switch_nowhere",
    /// Received and dropped: the source is not allowed at this port, or at another one by configuration.
    Spoofed "switch_spoofed",
    /// Received and dropped: this port has no part in the VLAN.
    Vlan "switch_vlan",
    /// Received and dropped: to a group address that stays on its link (IEEE 802.1Q, table 8-1).
    Reserved "switch_reserved",
    /// Received and dropped: too short, or from a group address.
    Invalid "switch_invalid",
    /// Of those flooded or limited: to a single station that is not known.
    Unknown "switch_unknown",
    /// Stations that were learned at this port.
    Learned "switch_learned",
    /// Stations that came to this port from another one.
    Moved "switch_moved",
    /// Frames of stations that were not learned: they move too often.
    Damped "switch_damped",
    /// Stations that were forgotten to make room for one at this port.
    Evicted "switch_evicted",
    /// Frames of stations that were not learned: their part of the table is full of stations that this port may not replace.
    TableFull "switch_table_full",
    /// Frames that could not be copied or tagged on their way to this port, for want of a buffer.
    NoBuffer "switch_no_buffer",
    /// Frames that this port had no room to send.
    TxDrops "switch_tx_drops",
}

/// Of one port, by one worker, who alone writes.
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

/// Counters of a port, over all workers.
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

    /// One of them.
    pub fn of(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter.name(), self.of(counter)))
    }
}
