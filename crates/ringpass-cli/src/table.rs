//! Tables printed for people.

use crate::output::print_line;

/// Prints a title and rows of cells, the first column flush left and the others flush right.
pub fn print(title: &str, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let chars = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| chars(row, column)).max().unwrap_or(0)).collect();
    print_line(title);
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            line += &if column == 0 { format!(" {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        print_line(line.trim_end());
    }
    print_line("");
}

/// Creates a row from texts.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Formats a number with one decimal place, or a dash.
pub fn number(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.1}"))
}
