//! The device's side of virtqueues (section 2.6 and what follows), read anew at each step and checked against all that
//! drivers must do.

mod chain;
mod packed;
mod split;
mod used;

use super::liar::Liar;
use crate::dma::DmaMap;

pub(super) use chain::Chain;
pub(super) use packed::Packed;
pub(super) use split::Split;

/// Why a device needs a reset: what its driver did that drivers may not do.
pub(super) type Fault = &'static str;

/// A ring or a buffer lies in memory that was not mapped for the card, or is not aligned.
pub(super) const NOT_MAPPED: Fault = "an address that was not mapped, or is not aligned";

/// What was negotiated, as far as rings are concerned.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) event_idx: bool,
    pub(super) indirect: bool,
    pub(super) in_order: bool,
    /// Legacy: notify the driver of an empty ring although it asked for silence.
    pub(super) on_empty: bool,
}

/// Where a queue lies: descriptors, driver area, device area.
pub(super) type Areas = [u64; 3];

/// Where a ring is read, to go back to.
#[derive(Clone, Copy)]
pub(super) struct Mark(u16, u16);

/// A queue's ring.
pub(super) trait Ring: Send {
    /// Takes the next chain that the driver has made available; `false` if there is none.
    fn next(&mut self, dma: &DmaMap, chain: &mut Chain) -> Result<bool, Fault>;

    /// Whether a notification's position (4.1.5.2) can be that of a driver of this ring.
    fn may_be_at(&mut self, dma: &DmaMap, position: u16) -> bool;

    /// Where it is read.
    fn mark(&self) -> Mark;

    /// Goes back: what was taken since is available again.
    fn rewind(&mut self, mark: Mark);

    /// Gives a chain back, in the order in which chains were taken. One that was used `whole` needs no entry of its own
    /// in a ring in order.
    fn put(&mut self, chain: &Chain, written: u32, whole: bool);

    /// Shows the driver what was given back.
    fn publish(&mut self, dma: &DmaMap, liar: Option<&Liar>) -> Result<(), Fault>;

    /// Whether the driver wants to be interrupted for what was published since this was last asked.
    fn interrupts(&mut self, dma: &DmaMap) -> Result<bool, Fault>;

    /// Asks for no notifications.
    fn quiet(&mut self, dma: &DmaMap) -> Result<(), Fault>;

    /// A liar's event suppression: reserved or wild.
    fn scramble(&mut self, dma: &DmaMap, random: u64) -> Result<(), Fault>;

    /// Asks for a notification of the next chain; `true` if there is one already.
    fn listen(&mut self, dma: &DmaMap) -> Result<bool, Fault>;
}

/// Whether an index that moves from `old` to `new` passes `event` (2.7.7.1, 2.7.10.1).
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
