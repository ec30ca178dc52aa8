use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;

fn key(station: u64) -> Key {
    Key::new(0x0200_0000_0000 | station, 7)
}
