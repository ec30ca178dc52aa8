//! Names of page sizes.

use ringpass::PageSize;

/// Returns the name of a page size on the command line and in JSON.
pub fn pages_name(pages: PageSize) -> &'static str {
    match pages {
        PageSize::Ordinary => "ordinary",
        PageSize::Huge2M => "huge2m",
        PageSize::Huge1G => "huge1g",
    }
}
