//! The driver's side of split and packed rings against an oracle: a device of a few lines, which uses buffers in any
//! order that was negotiated, and knows what each of them must hold.

mod device;

mod hand_over;
mod oracle;
mod random;
mod wrong;
