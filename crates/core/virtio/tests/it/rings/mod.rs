//! The driver's side of split and packed rings against an oracle: a simple device that uses buffers in any
//! order that was negotiated, and knows what each of them must contain.

mod device;

mod hand_over;
mod oracle;
mod random;
mod wrong;
