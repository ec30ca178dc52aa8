//! The parts that both layouts of a ring have in common, seen from the device.

use ringpass_memory::DmaMap;

use super::chain::Chain;
use super::fault::Fault;
use crate::virtio::liar::Liar;

/// Negotiated features that concern rings.
#[derive(Clone, Copy)]
pub(in super::super) struct RingFeatures {
    pub(in super::super) event_idx: bool,
    pub(in super::super) indirect: bool,
    pub(in super::super) in_order: bool,
    /// NOTIFY_ON_EMPTY (legacy): interrupt when the ring runs empty, even if the driver suppresses interrupts.
    pub(in super::super) on_empty: bool,
}

/// Addresses of a queue: descriptors, driver area, device area.
pub(in super::super) type Areas = [u64; 3];

/// Read position of a ring, to rewind to.
#[derive(Clone, Copy)]
pub(in super::super) struct Mark(pub(super) u16, pub(super) u16);

/// Device's side of a queue's ring.
pub(in super::super) trait Ring: Send {
    /// Takes the next chain that the driver has made available; `false` if there is none.
    fn next(&mut self, dma: &DmaMap, chain: &mut Chain) -> Result<bool, Fault>;

    /// Returns whether a driver of this ring can send a notification with this position (4.1.5.2).
    fn is_plausible_position(&mut self, dma: &DmaMap, position: u16) -> bool;

    /// Returns the read position.
    fn mark(&self) -> Mark;

    /// Rewinds: chains taken since `mark` are available again.
    fn rewind(&mut self, mark: Mark);

    /// Gives a chain back. Chains are given back in the order in which they were taken. With IN_ORDER, a chain
    /// used `whole` needs no used entry of its own.
    fn put(&mut self, chain: &Chain, written: u32, whole: bool);

    /// Shows the driver the chains that were given back.
    fn publish(&mut self, dma: &DmaMap, liar: Option<&Liar>) -> Result<(), Fault>;

    /// Returns whether the driver wants an interrupt for what was published since the last call.
    fn interrupts(&mut self, dma: &DmaMap) -> Result<bool, Fault>;

    /// Asks the driver for no notifications.
    fn disable_notification(&mut self, dma: &DmaMap) -> Result<(), Fault>;

    /// Tells a lie: writes event suppression with reserved or invalid values.
    fn scramble(&mut self, dma: &DmaMap, random: u64) -> Result<(), Fault>;

    /// Asks the driver to notify the device of the next chain; `true` if one is available already.
    fn enable_notification(&mut self, dma: &DmaMap) -> Result<bool, Fault>;
}

/// Returns whether an index that moves from `old` to `new` passes `event` (2.7.7.1, 2.7.10.1).
pub(super) fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
