//! Errors in a file, in one line.

/// Describes an error in a text: its line with the line's number, what is wrong with it, and the known key that is nearest to an unknown one.
pub(super) fn describe(text: &str, error: &toml::de::Error) -> String {
    let place = error.span().map_or(String::new(), |span| {
        let before = &text.as_bytes()[..span.start.min(text.len())];
        let number = before.iter().filter(|&&byte| byte == b'\n').count();
        // The line has the key, which the parser's words do not name.
        format!(":{}: '{}'", 1 + number, text.lines().nth(number).unwrap_or_default().trim())
    });
    let message = error.message().replace('\n', " ").replace("expected u16", "expected a number from 0 to 65535");
    let nearest = nearest_key(&message).map_or(String::new(), |key| format!("; did you mean '{key}'?"));
    format!("{place}: {message}{nearest}")
}

/// Returns the key of those that the parser expected that is nearest to the unknown one, if one is near.
fn nearest_key(message: &str) -> Option<&str> {
    let mut quoted = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    let near = |key: &&str| strsim::jaro_winkler(unknown, key);
    let nearest = quoted.max_by(|one, other| near(one).total_cmp(&near(other)))?;
    (near(&nearest) > 0.75).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_named_if_there_is_one() {
        let message = |key: &str| format!("unknown field `{key}`, expected one of `ageing`, `flood`, `table`");
        assert_eq!(nearest_key(&message("ageng")), Some("ageing"));
        assert_eq!(nearest_key(&message("tabel")), Some("table"));
        assert_eq!(nearest_key(&message("colour")), None);
        assert_eq!(nearest_key("invalid type: string"), None);
    }
}
