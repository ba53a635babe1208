//! Which part of every parameter, input and constant each device holds.

use super::problem::{ShardedTensor, Sharding};

/// For each rank, for each tensor of the answer, for each of its dimensions the first element and the one after the last.
pub fn slices(sharding: &Sharding) -> Vec<Vec<Vec<[u64; 2]>>> {
    let graph = &sharding.problem.graph;
    let shape = |tensor: &ShardedTensor| {
        let found = graph.tensors.iter().find(|each| each.name == tensor.name);
        found.map(|each| each.shape.clone()).unwrap_or_default()
    };
    let shapes: Vec<Vec<u64>> = sharding.tensors.iter().map(shape).collect();
    let devices: u64 = sharding.mesh.iter().product();
    (0..devices)
        .map(|rank| {
            let place = coordinates(rank, &sharding.mesh);
            let tensors = sharding.tensors.iter().zip(&shapes);
            tensors.map(|(tensor, shape)| held(tensor, shape, &sharding.mesh, &place)).collect()
        })
        .collect()
}

/// Where a rank stands on each axis of the mesh: the digits of its mixed radix number, outermost first.
fn coordinates(mut rank: u64, mesh: &[u64]) -> Vec<u64> {
    let mut place = vec![0; mesh.len()];
    for (here, &size) in place.iter_mut().zip(mesh).rev() {
        *here = rank % size;
        rank /= size;
    }
    place
}

/// The part of each dimension that a device holds: of unlike parts the one of its number.
fn held(tensor: &ShardedTensor, shape: &[u64], mesh: &[u64], place: &[u64]) -> Vec<[u64; 2]> {
    let mut parts = Vec::with_capacity(shape.len());
    for (dim, (&size, cut)) in shape.iter().zip(&tensor.axes).enumerate() {
        let (count, part) = cut.iter().fold((1, 0), |(count, part), &axis| {
            (count * mesh[axis], part * mesh[axis] + place[axis])
        });
        parts.push(match &tensor.rows {
            Some(rows) if dim == 0 => {
                let before: u64 = rows.iter().take(part as usize).sum();
                [before, before + rows.get(part as usize).copied().unwrap_or(0)]
            }
            _ => [size / count * part, size / count * (part + 1)],
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(axes: Vec<Vec<usize>>, rows: Option<Vec<u64>>) -> ShardedTensor {
        ShardedTensor { name: "w".to_owned(), axes, rows }
    }

    #[test]
    fn a_rank_is_a_mixed_radix_number() {
        assert_eq!(coordinates(6, &[2, 2, 2]), [1, 1, 0]);
        assert_eq!(coordinates(5, &[2, 3]), [1, 2]);
    }

    #[test]
    fn a_device_holds_the_part_of_its_place() {
        // Columns in four parts by the inner two axes; the device stands at 1, 0 of them: part 2.
        let cut = tensor(vec![vec![], vec![1, 2]], None);
        assert_eq!(held(&cut, &[64, 256], &[2, 2, 2], &[0, 1, 0]), [[0, 64], [128, 192]]);
        // 10 + 20 rows before the third part.
        let uneven = tensor(vec![vec![0, 1], vec![]], Some(vec![10, 20, 30, 4]));
        assert_eq!(held(&uneven, &[64, 32], &[2, 2], &[1, 0]), [[30, 60], [0, 32]]);
    }
}
