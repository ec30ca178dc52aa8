//! MAC addresses as people write them.

use std::fmt;
use std::str::FromStr;

use crate::MacAddress;

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no MAC address; write six bytes, as 02:00:00:00:00:01");
        let bytes: Result<Vec<u8>, _> = text.split([':', '-']).map(|byte| u8::from_str_radix(byte, 16)).collect();
        bytes.ok().and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(wrong)
    }
}
