//! The buffers that a kernel names, to give them other numbers.

use super::*;

impl Kernel {
    /// Every place in which the kernel names a buffer.
    pub fn buffers_mut(&mut self) -> Vec<&mut BufferId> {
        match self {
            Kernel::Matmul(k) => {
                let groups = k.groups.iter_mut().map(|g| &mut g.offsets);
                let epilogue = k.epilogue.iter_mut().flat_map(|e| region(e));
                [&mut k.a, &mut k.b, &mut k.c].into_iter().chain(groups).chain(epilogue).collect()
            }
            Kernel::Region(k) => region(k),
            Kernel::Attention(k) => {
                let results = [&mut k.out.buffer, &mut k.lse.buffer];
                inputs(&mut k.inputs).into_iter().chain(results).collect()
            }
            Kernel::AttentionBackward(k) => {
                let mut all = inputs(&mut k.inputs);
                all.extend([&mut k.out.buffer, &mut k.lse.buffer, &mut k.d_out.buffer]);
                let pairs = k.d_q.iter_mut().chain(&mut k.d_k).flatten();
                all.extend(pairs.chain(&mut k.d_v).chain(&mut k.d_sink).map(|v| &mut v.buffer));
                all
            }
            Kernel::LinearAttention(k) => {
                [&mut k.q, &mut k.k, &mut k.v, &mut k.g, &mut k.out].into_iter().map(|v| &mut v.buffer).collect()
            }
            Kernel::Reduce(k) => {
                let ragged = k.ragged.iter_mut().map(|r| &mut r.offsets);
                [&mut k.input.buffer, &mut k.out.buffer].into_iter().chain(ragged).collect()
            }
            Kernel::Scan(k) => vec![&mut k.input, &mut k.out],
            Kernel::Gather(k) => {
                let own = [&mut k.x.buffer, &mut k.index.buffer, &mut k.out];
                own.into_iter().chain(k.ragged.iter_mut().map(|r| &mut r.offsets)).collect()
            }
            Kernel::ScatterAdd(k) => {
                let own = [&mut k.v.buffer, &mut k.index.buffer, &mut k.out.buffer];
                own.into_iter().chain(k.ragged.iter_mut().map(|r| &mut r.offsets)).collect()
            }
            Kernel::TopK(k) => vec![&mut k.input, &mut k.out],
            Kernel::Group(k) => vec![&mut k.chosen, &mut k.rows],
            Kernel::Offsets(k) => vec![&mut k.chosen, &mut k.out],
            Kernel::Invert(k) => vec![&mut k.rows, &mut k.out],
            Kernel::RowGroups(k) => vec![&mut k.offsets, &mut k.out],
            Kernel::Random(k) => vec![&mut k.key, &mut k.out.buffer],
            Kernel::RandomKey { out, .. } => vec![out],
            Kernel::Exchange(k) => {
                let ragged = k.ragged.iter_mut().map(|r| &mut r.offsets);
                [&mut k.x, &mut k.out].into_iter().chain(ragged).collect()
            }
            Kernel::AllToAllV(k) => vec![&mut k.x, &mut k.offsets, &mut k.counts, &mut k.out],
            Kernel::Coordinate(k) => vec![&mut k.out],
            Kernel::Send(k) | Kernel::Recv(k) => vec![&mut k.buffer],
        }
    }
}

fn region(k: &mut Region) -> Vec<&mut BufferId> {
    let loads = k.loads.iter_mut().flat_map(|load| {
        let index = load.through.as_mut().map(|l| &mut l.index.buffer);
        std::iter::once(&mut load.view.buffer).chain(index)
    });
    let stores = k.stores.iter_mut().map(|s| &mut s.view.buffer);
    loads.chain(k.ragged.iter_mut().map(|r| &mut r.offsets)).chain(stores).collect()
}

fn inputs(k: &mut AttentionInputs) -> Vec<&mut BufferId> {
    let pairs = k.pairs.iter_mut().flat_map(|p| [&mut p.q, &mut p.k]);
    let marks = k.documents.iter_mut().chain(&mut k.positions).flat_map(|d| [&mut d.queries, &mut d.keys]);
    pairs.chain([&mut k.v]).chain(marks).chain(&mut k.sink).map(|v| &mut v.buffer).collect()
}
