//! Flow through a network, and what a minimum cut leaves behind it.
//!
//! The edges of a network stay while capacities change: it is made once and cut at many prices. Dinic's algorithm: O(V²E), in practice linear on
//! networks of graphs. What it is asked for depends on the network only, and not on which of several maximum flows is found.

/// More than all capacities together that are not to be cut.
pub const UNBOUNDED: u64 = 1 << 60;

/// Edges between vertices 0, 1, …; each has a reverse of capacity 0.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// Where the edges out of each vertex begin; one more for the end.
    first: Vec<u32>,
    /// Where each goes.
    to: Vec<u32>,
    /// The place of its reverse.
    reverse: Vec<u32>,
    /// The place of each edge that was asked for, in order.
    places: Vec<u32>,
}

impl Network {
    /// A network of these edges.
    pub fn new(vertices: usize, edges: &[(u32, u32)]) -> Network {
        let mut first = vec![0; vertices + 1];
        for &(from, to) in edges {
            first[from as usize + 1] += 1;
            first[to as usize + 1] += 1;
        }
        for vertex in 0..vertices {
            first[vertex + 1] += first[vertex];
        }
        let mut next = first.clone();
        let mut place = |of: u32| {
            next[of as usize] += 1;
            next[of as usize] - 1
        };
        let (mut to, mut reverse) = (vec![0; 2 * edges.len()], vec![0; 2 * edges.len()]);
        let mut places = Vec::with_capacity(edges.len());
        for &(from, into) in edges {
            let (there, back) = (place(from), place(into));
            (to[there as usize], to[back as usize]) = (into, from);
            (reverse[there as usize], reverse[back as usize]) = (back, there);
            places.push(there);
        }
        Network { first, to, reverse, places }
    }

    /// The vertices that could still send something to `target` once as much as fits has gone there from `source`; `capacity` of each edge, in order.
    pub fn behind(&self, source: usize, target: usize, capacity: impl Iterator<Item = u64>) -> Vec<bool> {
        let mut flow = Flow::new(self, capacity);
        while flow.levels(source, target) {
            flow.fill(source, target);
        }
        flow.reaching(target)
    }

    fn out(&self, vertex: usize) -> std::ops::Range<usize> {
        self.first[vertex] as usize..self.first[vertex + 1] as usize
    }
}

struct Flow<'n> {
    of: &'n Network,
    /// What each edge still takes.
    room: Vec<u64>,
    /// Distances from the source along edges with room.
    level: Vec<u32>,
    /// The first edge of each vertex that may lead on.
    next: Vec<u32>,
    /// Vertices that are to be looked at.
    queue: Vec<u32>,
}

impl<'n> Flow<'n> {
    fn new(of: &'n Network, capacity: impl Iterator<Item = u64>) -> Flow<'n> {
        let mut room = vec![0; of.to.len()];
        for (place, capacity) in of.places.iter().zip(capacity) {
            room[*place as usize] = capacity;
        }
        let vertices = of.first.len() - 1;
        Flow { of, room, level: vec![0; vertices], next: vec![0; vertices], queue: Vec::with_capacity(vertices) }
    }

    /// Finds the distances, up to that of the target. Is it in reach?
    fn levels(&mut self, source: usize, target: usize) -> bool {
        self.level.fill(u32::MAX);
        self.level[source] = 0;
        self.queue.clear();
        self.queue.push(source as u32);
        let mut at = 0;
        while let Some(&vertex) = self.queue.get(at) {
            at += 1;
            for edge in self.of.out(vertex as usize) {
                let to = self.of.to[edge] as usize;
                if self.room[edge] > 0 && self.level[to] == u32::MAX {
                    self.level[to] = self.level[vertex as usize] + 1;
                    if to == target {
                        return true;
                    }
                    self.queue.push(to as u32);
                }
            }
        }
        false
    }

    /// Fills paths along increasing distances, until none has room.
    fn fill(&mut self, source: usize, target: usize) {
        let of = self.of;
        self.next.copy_from_slice(&of.first[..self.level.len()]);
        let mut path: Vec<usize> = vec![];
        let mut vertex = source;
        loop {
            if vertex == target {
                let room = path.iter().map(|&e| self.room[e]).min().expect("the target is not the source");
                for &edge in &path {
                    self.room[edge] -= room;
                    self.room[of.reverse[edge] as usize] += room;
                }
                // On from the first edge that is full.
                let full = path.iter().position(|&e| self.room[e] == 0).expect("one is the narrowest");
                vertex = of.to[of.reverse[path[full]] as usize] as usize;
                path.truncate(full);
                continue;
            }
            let next = self.next[vertex] as usize;
            if next == of.first[vertex + 1] as usize {
                let Some(edge) = path.pop() else { return };
                vertex = of.to[of.reverse[edge] as usize] as usize;
                self.next[vertex] += 1;
                continue;
            }
            let to = of.to[next] as usize;
            if self.room[next] > 0 && self.level[to] == self.level[vertex] + 1 {
                path.push(next);
                vertex = to;
            } else {
                self.next[vertex] += 1;
            }
        }
    }

    /// The vertices that can still send something to `target`.
    fn reaching(&self, target: usize) -> Vec<bool> {
        let mut reaching = vec![false; self.level.len()];
        reaching[target] = true;
        let mut stack = vec![target];
        while let Some(vertex) = stack.pop() {
            for edge in self.of.out(vertex) {
                let from = self.of.to[edge] as usize;
                if self.room[self.of.reverse[edge] as usize] > 0 && !reaching[from] {
                    reaching[from] = true;
                    stack.push(from);
                }
            }
        }
        reaching
    }
}
