//! The median of measurements.

/// Returns the median, of an even number of values the lower one in the middle.
///
/// # Panics
/// If there are no values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
