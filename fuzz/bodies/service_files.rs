//! A service's file of any bytes: it is read, or refused in a line that says why.

/// Reads one file.
pub fn case(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(why) = ringpass_cli::config_file::check_text(&text) {
        assert!(why.starts_with(':') && !why.contains('\n'), "{why:?}");
    }
}
