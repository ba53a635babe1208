//! How long tensors of one shape take from each layout to each other: worked out once a pair, whichever edge asks.

use super::ir::Tensor;
use super::layout::Layout;
use super::packed::Packed;
use super::price::Reading;
use super::reshard::Walker;
use std::collections::HashMap;

/// Times of the reshards of tensors of one shape and format.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Places of the layouts that were seen.
    places: HashMap<Layout, usize>,
    /// The layouts by place.
    packed: Vec<Packed>,
    /// By places of both layouts.
    times: Vec<Vec<Option<u64>>>,
}

impl Routes {
    /// Picoseconds for each writer's layout (by row) and each reading of a tensor, forward and backward.
    pub fn matrix(
        &mut self,
        walker: &mut Walker<'_>,
        tensor: &Tensor,
        written: &[Layout],
        readings: &[Reading],
    ) -> Vec<u64> {
        let mut place = |layout| self.place(layout, &tensor.shape, walker);
        let rows: Vec<usize> = written.iter().map(&mut place).collect();
        let columns: Vec<(usize, Option<usize>)> = readings
            .iter()
            .map(|reading| (place(&reading.layout), reading.gradient.as_ref().map(&mut place)))
            .collect();
        let mut now = Packed::default();
        let mut cells = Vec::with_capacity(rows.len() * columns.len());
        for &row in &rows {
            for (reading, &(read, gradient)) in readings.iter().zip(&columns) {
                let mut time = |from: usize, to: usize| {
                    let known = &mut self.times[from];
                    if known.len() <= to {
                        known.resize(self.packed.len(), None);
                    }
                    *known[to].get_or_insert_with(|| {
                        now.clone_from(&self.packed[from]);
                        walker.time(&mut now, &self.packed[to], tensor.dtype.bytes()).0
                    })
                };
                let forward = time(row, read);
                let backward = gradient.map_or(0, |gradient| time(gradient, row));
                cells.push(forward * (1 + u64::from(reading.again)) + backward);
            }
        }
        cells
    }

    fn place(&mut self, layout: &Layout, shape: &[u64], walker: &mut Walker<'_>) -> usize {
        if let Some(&place) = self.places.get(layout) {
            return place;
        }
        self.places.insert(layout.clone(), self.times.len());
        self.packed.push(walker.packed(layout, shape));
        self.times.push(vec![]);
        self.times.len() - 1
    }
}
