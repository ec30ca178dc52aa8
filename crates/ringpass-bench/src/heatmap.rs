//! Heat maps as SVG.

use std::path::Path;

use plotters::prelude::*;
use ringpass::Error;

use super::plot::{Area, DrawError, save};

/// One heat map: a value for each row and column, or `None` if it was not measured.
pub struct HeatMap {
    pub title: String,
    /// Caption below the map.
    pub words: String,
    pub columns: Vec<String>,
    pub rows: Vec<String>,
    /// Values, row by row.
    pub values: Vec<Vec<Option<f64>>>,
}

const CELL: (i32, i32) = (62, 34);
const LEFT: i32 = 78;
const TOP: i32 = 44;
const BELOW: i32 = 80;
/// Least width in pixels, so that the title fits above a map with few columns.
const NARROWEST: i32 = 460;

/// Draws maps, `columns_of_maps` side by side, with the same colour scale for all.
pub fn draw(path: &Path, maps: &[HeatMap], columns_of_maps: usize, x: &str, y: &str) -> Result<(), Error> {
    let columns = maps.iter().map(|map| map.columns.len()).max().unwrap_or(0) as i32;
    let rows = maps.iter().map(|map| map.rows.len()).max().unwrap_or(0) as i32;
    let (width, height) = ((LEFT + columns * CELL.0 + 24).max(NARROWEST), TOP + rows * CELL.1 + BELOW);
    let down = maps.len().div_ceil(columns_of_maps);
    let size = (width as u32 * columns_of_maps.min(maps.len()) as u32, height as u32 * down as u32);
    let values = || maps.iter().flat_map(|map| map.values.iter().flatten().flatten().copied());
    let range = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    save(path, size, |root| {
        for (i, map) in maps.iter().enumerate() {
            let at = ((i % columns_of_maps) as i32 * width, (i / columns_of_maps) as i32 * height);
            draw_map(root, map, at, range, x, y)?;
        }
        Ok(())
    })
}

fn draw_map(
    root: &Area,
    map: &HeatMap,
    (left, top): (i32, i32),
    range: (f64, f64),
    x: &str,
    y: &str,
) -> Result<(), DrawError> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let text = |size: u32, horizontal, color: RGBColor| {
        ("sans-serif", size).into_font().color(&color).pos(Pos::new(horizontal, VPos::Center))
    };
    let center = |size, color| text(size, HPos::Center, color);
    root.draw_text(&map.title, &text(17, HPos::Left, BLACK), (left + 12, top + 20))?;
    let corner = |row: usize, column: usize| (left + LEFT + column as i32 * CELL.0, top + TOP + row as i32 * CELL.1);
    for (row, values) in map.values.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let (a, b) = (corner(row, column), corner(row + 1, column + 1));
            let share = (value - range.0) / (range.1 - range.0).max(1e-9);
            root.draw(&Rectangle::new([a, (b.0 - 1, b.1 - 1)], color(share).filled()))?;
            let ink = if share > 0.55 { WHITE } else { BLACK };
            let middle = ((a.0 + b.0) / 2, (a.1 + b.1) / 2);
            root.draw_text(&format!("{value:.1}"), &center(14, ink), middle)?;
        }
    }
    for (row, name) in map.rows.iter().enumerate() {
        let (x, y) = corner(row, 0);
        root.draw_text(name, &text(14, HPos::Right, BLACK), (x - 6, y + CELL.1 / 2))?;
    }
    let bottom = corner(map.rows.len(), 0).1;
    for (column, name) in map.columns.iter().enumerate() {
        root.draw_text(name, &center(14, BLACK), (corner(0, column).0 + CELL.0 / 2, bottom + 12))?;
    }
    let middle = (corner(0, 0).0 + corner(0, map.columns.len()).0) / 2;
    root.draw_text(x, &center(14, BLACK), (middle, bottom + 32))?;
    let turned = center(14, BLACK).transform(FontTransform::Rotate270);
    root.draw_text(y, &turned, (left + 16, (corner(0, 0).1 + bottom) / 2))?;
    root.draw_text(&map.words, &text(14, HPos::Left, RGBColor(0x50, 0x50, 0x50)), (left + LEFT, bottom + 54))
}

/// Returns a colour between pale and dark blue for a share from 0 to 1.
fn color(share: f64) -> RGBColor {
    const PALE: [f64; 3] = [237.0, 243.0, 250.0];
    const DARK: [f64; 3] = [16.0, 64.0, 128.0];
    let [red, green, blue] = [0, 1, 2].map(|i| (PALE[i] + (DARK[i] - PALE[i]) * share.clamp(0.0, 1.0)) as u8);
    RGBColor(red, green, blue)
}
