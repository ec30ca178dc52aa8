//! Lies that the virtio model can tell.

use crate::lies::kinds;

/// Lies of a virtio device.
pub type Lies = crate::lies::Lies<Lie>;

/// Lies that keep a device from ever becoming ready.
const NEVER_READY: &[Lie] = &[Lie::ResetNever, Lie::FeaturesNever, Lie::QueueResetNever];

kinds! {
    "never-ready" NEVER_READY, DmaOutside;
    IdFree "id-free" "Used: a descriptor that the card does not have.";
    IdTwice "id-twice" "Used: the one that was given back before.";
    IdWild "id-wild" "Used: one that the ring has not.";
    IdMidChain "id-mid-chain" "Used: the one behind.";
    LengthLong "length-long" "Used: more bytes than the buffer has.";
    LengthZero "length-zero" "Used: no bytes.";
    IndexJumps "index-jumps" "Split: the used index moves by more than there is.";
    IndexBack "index-back" "Split: the used index goes backwards.";
    FlagsEarly "flags-early" "Packed: the next descriptor is used too.";
    WrongWrap "wrong-wrap" "Packed: used with the wrong wrap counter.";
    EventReserved "event-reserved" "Event suppression with reserved or wild values.";
    BuffersZero "buffers-zero" "Rx: a frame in 0 buffers.";
    BuffersMany "buffers-many" "Rx: a frame in 65,535 buffers.";
    BuffersMissing "buffers-missing" "Rx: the last buffer of a frame does not come.";
    HeaderWild "header-wild" "Rx: a header that speaks of what lies beyond the frame.";
    RxStuck "rx-stuck" "Rx: no frame is delivered.";
    TxStuck "tx-stuck" "Tx: no frame is sent, none given back.";
    ConfigChanges "config-changes" "The configuration is another one in mid run.";
    ConfigNever "config-never" "The configuration changes at each look.";
    NeedsReset "needs-reset" "The card says that it needs a reset.";
    ControlNever "control-never" "Commands are not answered.";
    ControlFails "control-fails" "Commands fail.";
    LinkFlap "link-flap" "The link goes down for a while.";
    Removed "removed" "The card has gone: registers read as ones, writes and memory do nothing.";
    ResetNever "reset-never" "A reset is never done.";
    FeaturesNever "features-never" "No set of features is ever agreed to.";
    QueueResetNever "queue-reset-never" "A queue's reset is never done.";
    InterruptLost "interrupt-lost" "A message is not sent.";
    InterruptStorm "interrupt-storm" "All messages are sent in each round.";
    DmaOutside "dma-outside" "Rx: memory is written to at an address of the configuration.";
}
