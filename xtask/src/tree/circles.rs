//! Circles of files that import each other, none of which can be read without the others.

/// The strongly connected components of more than one node, the largest first, each in the order of
/// its nodes. `arrows` has the successors of each node (Tarjan 1972).
pub fn circles(arrows: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut walk = Walk {
        arrows,
        order: vec![None; arrows.len()],
        lowest: vec![0; arrows.len()],
        is_open: vec![false; arrows.len()],
        open: Vec::new(),
        visited: 0,
        found: Vec::new(),
    };
    for node in 0..arrows.len() {
        if walk.order[node].is_none() {
            walk.visit(node);
        }
    }
    let mut found = walk.found;
    found.sort_by_key(|circle| (std::cmp::Reverse(circle.len()), circle[0]));
    found
}

struct Walk<'a> {
    arrows: &'a [Vec<usize>],
    /// The position of each node in the order in which nodes are reached.
    order: Vec<Option<usize>>,
    /// The earliest node that is known to be reachable from each node.
    lowest: Vec<usize>,
    is_open: Vec<bool>,
    /// Nodes whose component is not complete.
    open: Vec<usize>,
    visited: usize,
    found: Vec<Vec<usize>>,
}

impl Walk<'_> {
    fn visit(&mut self, node: usize) {
        let order = self.visited;
        self.visited += 1;
        self.order[node] = Some(order);
        self.lowest[node] = order;
        self.is_open[node] = true;
        self.open.push(node);
        for &next in &self.arrows[node] {
            match self.order[next] {
                None => {
                    self.visit(next);
                    self.lowest[node] = self.lowest[node].min(self.lowest[next]);
                }
                Some(earlier) if self.is_open[next] => {
                    self.lowest[node] = self.lowest[node].min(earlier);
                }
                Some(_) => {}
            }
        }
        if self.lowest[node] == order {
            let start = self.open.iter().rposition(|&open| open == node).unwrap_or_default();
            let mut circle = self.open.split_off(start);
            circle.iter().for_each(|&member| self.is_open[member] = false);
            if circle.len() > 1 {
                circle.sort_unstable();
                self.found.push(circle);
            }
        }
    }
}
