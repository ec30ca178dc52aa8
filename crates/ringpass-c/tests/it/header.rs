//! The header is what cbindgen makes of the sources.

use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    // Parsed file by file: for a whole crate, cbindgen would run `cargo metadata`.
    let sources = ["status", "config", "packet", "ports", "queue"].map(|file| root.join(format!("src/{file}.rs")));
    let builder = sources.iter().fold(cbindgen::Builder::new().with_config(config), |all, file| all.with_src(file));
    let mut made = Vec::new();
    builder.generate().expect("sources that cbindgen understands").write(&mut made);
    let (made, path) = (String::from_utf8(made).expect("text"), root.join("include/ringpass.h"));
    if std::env::var_os("RINGPASS_WRITE").is_some() {
        std::fs::write(&path, &made).expect("include/ringpass.h");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        header == made,
        "include/ringpass.h is out of date: RINGPASS_WRITE=1 cargo test -p ringpass-c --test it header"
    );
}
