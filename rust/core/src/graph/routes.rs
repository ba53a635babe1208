//! How long tensors of one shape take from each layout to each other: worked out once a pair, whichever edge asks.

use super::ir::Tensor;
use super::layout::Layout;
use super::price::Reading;
use super::reshard::Carrier;
use std::collections::HashMap;

/// Times of the reshards of tensors of one shape and format.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Places of the layouts that were seen.
    places: HashMap<Layout, usize>,
    /// By places of both layouts.
    times: Vec<Vec<Option<u64>>>,
}

impl Routes {
    /// Picoseconds for each writer's layout (by row) and each reading of a tensor, forward and backward.
    pub fn matrix(
        &mut self,
        carrier: &Carrier<'_>,
        tensor: &Tensor,
        written: &[Layout],
        readings: &[Reading],
    ) -> Vec<u64> {
        let rows: Vec<usize> = written.iter().map(|layout| self.place(layout)).collect();
        let columns: Vec<(usize, Option<usize>)> = readings
            .iter()
            .map(|r| (self.place(&r.layout), r.gradient.as_ref().map(|layout| self.place(layout))))
            .collect();
        let mut now = Layout::replicated(0);
        let mut cells = Vec::with_capacity(rows.len() * columns.len());
        for (from, &row) in written.iter().zip(&rows) {
            for (reading, &(read, gradient)) in readings.iter().zip(&columns) {
                let mut time = |(from, start): (&Layout, usize), (to, end): (&Layout, usize)| {
                    let known = &mut self.times[start];
                    if known.len() <= end {
                        known.resize(self.places.len(), None);
                    }
                    *known[end].get_or_insert_with(|| {
                        now.clone_from(from);
                        carrier.time(&mut now, to, &tensor.shape, tensor.dtype.bytes()).0
                    })
                };
                let forward = time((from, row), (&reading.layout, read));
                let backward = match (&reading.gradient, gradient) {
                    (Some(layout), Some(place)) => time((layout, place), (from, row)),
                    _ => 0,
                };
                cells.push(forward * (1 + u64::from(reading.again)) + backward);
            }
        }
        cells
    }

    fn place(&mut self, layout: &Layout) -> usize {
        if let Some(&place) = self.places.get(layout) {
            return place;
        }
        self.places.insert(layout.clone(), self.times.len());
        self.times.push(vec![]);
        self.times.len() - 1
    }
}
