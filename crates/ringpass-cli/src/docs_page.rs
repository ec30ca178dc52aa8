//! Pages of the documentation that are made from the program.

/// Compares a page in the folder `docs` with what the program makes of it; with `RINGPASS_UPDATE_QUOTES=1`, writes it anew.
///
/// # Panics
///
/// If it differs.
pub fn check(name: &str, page: &str) {
    let path = format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("RINGPASS_UPDATE_QUOTES").is_some() {
        std::fs::write(&path, page).expect("the page is written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/{name} differs; RINGPASS_UPDATE_QUOTES=1 writes it anew");
}
