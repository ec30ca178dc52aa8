//! Ports and queues that wrap another one and pass on every call that they do not handle themselves.

use std::sync::Arc;

use ringpass_memory::{Burst, FrameBatch};

use crate::lending::Lending;
use crate::{
    Error, Link, MacAddress, Port, QueuePair, RingStatus, Rule, RxQueue, State, Stats, WakeSource, Wakeable,
    copy_packets,
};

/// Defines a trait whose methods are those of the base traits and pass the call on, and implements the base traits
/// through it. A base method that is missing here does not compile, or is reported by clippy. What is marked `own` is not
/// passed on, but done by a function that calls the other methods.
macro_rules! decorator {
    ($(#[$doc:meta])* $decorator:ident wraps $inner:ident { $($base:ident {
        $(ref $get:ident $(<$life:lifetime>)? ($($get_arg:ident: $get_type:ty),*) $(-> $get_result:ty)?;)*
        $(mut $set:ident ($($set_arg:ident: $set_type:ty),*) $(-> $set_result:ty)?;)*
        $(own $own:ident ($own_arg:ident: $own_type:ty) -> $own_result:ty = $own_function:path;)*
    })+ }) => {
        $(#[$doc])*
        pub trait $decorator: Send {
            /// Returns what is wrapped.
            fn inner(&self) -> &dyn $inner;

            /// Returns what is wrapped.
            fn inner_mut(&mut self) -> &mut dyn $inner;

            $($(
                #[doc = concat!("Handles [`", stringify!($base), "::", stringify!($get), "`].")]
                fn $get $(<$life>)? (& $($life)? self, $($get_arg: $get_type),*) $(-> $get_result)? {
                    self.inner().$get($($get_arg),*)
                }
            )*
            $(
                #[doc = concat!("Handles [`", stringify!($base), "::", stringify!($set), "`].")]
                fn $set(&mut self, $($set_arg: $set_type),*) $(-> $set_result)? {
                    self.inner_mut().$set($($set_arg),*)
                }
            )*)+
        }

        $(
            #[deny(clippy::missing_trait_methods)]
            impl<T: $decorator> $base for T {
                $(
                    fn $get $(<$life>)? (& $($life)? self, $($get_arg: $get_type),*) $(-> $get_result)? {
                        $decorator::$get(self, $($get_arg),*)
                    }
                )*
                $(
                    #[inline]
                    fn $set(&mut self, $($set_arg: $set_type),*) $(-> $set_result)? {
                        $decorator::$set(self, $($set_arg),*)
                    }
                )*
                $(
                    fn $own(&mut self, $own_arg: $own_type) -> $own_result {
                        $own_function(self, $own_arg)
                    }
                )*
            }
        )+
    };
}

decorator! {
    /// A [`Port`] that wraps another one. Each method passes the call on unless it is overridden.
    PortDecorator wraps Port {
        Port {
            ref name() -> &str;
            ref mac() -> MacAddress;
            ref notes() -> Vec<String>;
            mut link() -> Link;
            mut stats() -> Stats;
            mut queue_stats() -> Vec<Stats>;
            mut rings() -> Vec<RingStatus>;
            mut extended() -> Vec<(&'static str, u64)>;
            mut state() -> State;
            mut take_queues() -> Vec<QueuePair>;
            mut finish() -> Result<(), Error>;
            mut set_promiscuous(on: bool) -> Result<(), Error>;
            mut steer(rule: &Rule, queue: usize) -> Result<(), Error>;
            mut lending(pair: usize) -> Option<Arc<Lending>>;
        }
    }
}

decorator! {
    /// An [`RxQueue`] that wraps another one. Each method passes the call on unless it is overridden.
    RxDecorator wraps RxQueue {
        Wakeable {
            ref wake_sources<'a>(each: &mut dyn FnMut(WakeSource<'a>));
            mut arm();
            mut disarm();
        }
        RxQueue {
            ref has_link() -> bool;
            ref rx_timestamps() -> &[u64];
            mut rx_burst(burst: &mut Burst) -> usize;
            mut borrow_from(lending: &Arc<Lending>) -> Result<(), Error>;
            own rx_frames(frames: &mut FrameBatch) -> usize = copy_packets;
        }
    }
}
