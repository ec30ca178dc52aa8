//! Text form of MAC addresses.

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
        let wrong = || format!("'{text}' is not a MAC address; write six bytes, such as 02:00:00:00:00:01");
        // `from_str_radix` alone would take a sign, too.
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        let bytes: Option<Vec<u8>> = text.split([':', '-']).map(byte).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use crate::MacAddress;

    #[test]
    fn six_bytes_and_nothing_else() {
        assert_eq!("02-00-00:00:00:aF".parse(), Ok(MacAddress([2, 0, 0, 0, 0, 0xaf])));
        for wrong in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "+2:00:00:00:00:01", "02:00:00:00:00:", "02:00:00:00:00:100"]
        {
            assert!(wrong.parse::<MacAddress>().is_err(), "{wrong}");
        }
    }
}
