use std::collections::{BTreeMap, BTreeSet};

/// A value of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

impl Value {
    pub(crate) fn get(&self, key: &str) -> Result<&Value, String> {
        let Value::Dict(entries) = self else { return Err(format!("{key} of no dictionary")) };
        let is_key = |(found, _): &&(Value, Value)| *found == Value::Text(key.to_owned());
        entries.iter().find(is_key).map(|(_, value)| value).ok_or(format!("no {key}"))
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> &mut Value {
        let Value::Dict(entries) = self else { panic!("{key} of no dictionary") };
        let is_key = |(found, _): &&mut (Value, Value)| *found == Value::Text(key.to_owned());
        entries.iter_mut().find(is_key).map(|(_, value)| value).expect("the key")
    }

    pub(crate) fn items(&self) -> Result<&[Value], String> {
        match self {
            Value::List(items) => Ok(items),
            other => Err(format!("{other:?} is no list")),
        }
    }

    pub(crate) fn items_mut(&mut self) -> &mut Vec<Value> {
        match self {
            Value::List(items) => items,
            other => panic!("{other:?} is no list"),
        }
    }

    pub(crate) fn int(&self, key: &str) -> Result<i64, String> {
        match self.get(key)? {
            // The viewer's numbers are doubles.
            Value::Int(int) if int.abs() <= 1 << 53 => Ok(*int),
            other => Err(format!("{key} is {other:?}")),
        }
    }

    fn size(&self, key: &str) -> Result<i64, String> {
        self.int(key).and_then(|int| if int < 0 { Err(format!("{key} is {int}")) } else { Ok(int) })
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, String> {
        match self.get(key)? {
            Value::Text(text) => Ok(text),
            other => Err(format!("{key} is {other:?}")),
        }
    }
}

/// Reads the instructions that `unpickle` of PyTorch's `MemoryViz.js` knows, and no others. A value
/// is copied when it is memorised, so containers must be complete by then.
pub(crate) fn unpickle(bytes: &[u8]) -> Result<Value, String> {
    let mut at = 0;
    let mut take = |len: usize| {
        at += len;
        bytes.get(at - len..at).ok_or("the pickle ends in the middle")
    };
    let (mut stack, mut marks): (Vec<Value>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut memo: BTreeMap<u32, Value> = BTreeMap::new();
    loop {
        let opcode = take(1)?[0];
        match opcode {
            0x80 => match take(1)?[0] {
                2..=4 => {}
                version => return Err(format!("protocol {version}")),
            },
            0x95 => drop(take(8)?),
            b'(' => marks.push(stack.len()),
            b'N' => stack.push(Value::None),
            0x88 => stack.push(Value::Bool(true)),
            0x89 => stack.push(Value::Bool(false)),
            b'K' => stack.push(Value::Int(take(1)?[0].into())),
            b'M' => stack.push(Value::Int(number(take(2)?))),
            b'J' => stack.push(Value::Int(i64::from(number(take(4)?) as i32))),
            0x8a => {
                let len = take(1)?[0];
                let digits = take(len.into())?;
                if !(1..=8).contains(&len) {
                    return Err(format!("a number of {len} bytes"));
                }
                let free_bits = 64 - 8 * u32::from(len);
                stack.push(Value::Int(number(digits) << free_bits >> free_bits));
            }
            b'G' => {
                let digits = take(8)?.try_into().expect("8 bytes");
                stack.push(Value::Float(f64::from_be_bytes(digits)));
            }
            0x8c | b'X' => {
                let len = number(take(if opcode == b'X' { 4 } else { 1 })?);
                let text = std::str::from_utf8(take(len as usize)?).map_err(|e| e.to_string())?;
                stack.push(Value::Text(text.to_owned()));
            }
            b'}' => stack.push(Value::Dict(Vec::new())),
            b']' | b')' => stack.push(Value::List(Vec::new())),
            0x85..=0x87 => {
                let items = split(&mut stack, |len| len.checked_sub((opcode - 0x84).into()))?;
                stack.push(Value::List(items));
            }
            b't' | b'l' => {
                let items = split(&mut stack, |_| marks.pop())?;
                stack.push(Value::List(items));
            }
            b'd' => {
                let items = split(&mut stack, |_| marks.pop())?;
                stack.push(Value::Dict(pairs(items)?));
            }
            b'a' | b'e' => {
                let one = opcode == b'a';
                let items =
                    split(&mut stack, |len| if one { len.checked_sub(1) } else { marks.pop() })?;
                if items.len() > 1000 {
                    return Err(format!("{} items at once", items.len()));
                }
                match stack.last_mut() {
                    Some(Value::List(list)) => list.extend(items),
                    other => return Err(format!("items for {other:?}")),
                }
            }
            b's' | b'u' => {
                let one = opcode == b's';
                let items =
                    split(&mut stack, |len| if one { len.checked_sub(2) } else { marks.pop() })?;
                match stack.last_mut() {
                    Some(Value::Dict(dict)) => dict.extend(pairs(items)?),
                    other => return Err(format!("keys for {other:?}")),
                }
            }
            b'q' | b'r' | 0x94 => {
                let index = match opcode {
                    b'q' => number(take(1)?) as u32,
                    b'r' => number(take(4)?) as u32,
                    _ => memo.len() as u32,
                };
                memo.insert(index, stack.last().ok_or("nothing to memorise")?.clone());
            }
            b'h' | b'j' => {
                let index = number(take(if opcode == b'j' { 4 } else { 1 })?) as u32;
                stack.push(memo.get(&index).ok_or(format!("no memo {index}"))?.clone());
            }
            b'.' => break,
            other => return Err(format!("unknown opcode {other:#04x}")),
        }
    }
    match (stack.pop(), stack.is_empty() && marks.is_empty() && at == bytes.len()) {
        (Some(root), true) => Ok(root),
        _ => Err("something is left over".to_owned()),
    }
}

fn number(digits: &[u8]) -> i64 {
    digits.iter().rev().fold(0, |number, &digit| number << 8 | i64::from(digit))
}

fn split(
    stack: &mut Vec<Value>,
    at: impl FnOnce(usize) -> Option<usize>,
) -> Result<Vec<Value>, String> {
    let at = at(stack.len()).filter(|&at| at <= stack.len()).ok_or("no mark, or no values")?;
    Ok(stack.split_off(at))
}

fn pairs(items: Vec<Value>) -> Result<Vec<(Value, Value)>, String> {
    if !items.len().is_multiple_of(2) {
        return Err("a key without a value".to_owned());
    }
    let mut items = items.into_iter();
    let mut pairs = Vec::new();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// A segment while the viewer goes backwards, in the viewer's order.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Segment {
    address: i64,
    end: i64,
    stream: i64,
}

/// The state that a viewer shows before the first event.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Beginning {
    /// Address to requested bytes, and true if the block waits for another stream.
    pub(crate) blocks: BTreeMap<i64, (i64, bool)>,
    pub(crate) reserved_bytes: i64,
}

struct View {
    segments: Vec<Segment>,
    blocks: BTreeMap<i64, (i64, bool)>,
}

/// Goes through a snapshot as the viewer does. Refuses snapshots on which the viewer fails or shows
/// wrong numbers.
pub(crate) fn check(root: &Value) -> Result<Beginning, String> {
    root.get("allocator_settings")?;
    root.get("external_annotations")?.items()?;
    let traces = root.get("device_traces")?.items()?;
    let mut view = View { segments: Vec::new(), blocks: BTreeMap::new() };
    for segment in root.get("segments")?.items()? {
        if segment.size("device")? as usize >= traces.len() {
            return Err("no trace of the device".to_owned());
        }
        view.add_segment(segment)?;
    }
    view.segments.sort_by_key(|segment| segment.address);
    let [trace] = traces else { return Err("one trace is expected".to_owned()) };
    let events = trace.items()?;
    check_categories(events)?;
    for (index, event) in events.iter().enumerate().rev() {
        view.undo(event).map_err(|problem| format!("event {index}: {problem}"))?;
    }
    let reserved_bytes = view.segments.iter().map(|segment| segment.end - segment.address).sum();
    Ok(Beginning { blocks: view.blocks, reserved_bytes })
}

fn check_categories(events: &[Value]) -> Result<(), String> {
    let named: BTreeSet<&str> =
        events.iter().filter_map(|event| event.text("category").ok()).collect();
    if named.is_empty() || named.contains("unknown") {
        return Ok(());
    }
    Err(format!("no unknown category among {named:?}"))
}

fn check_frames(record: &Value) -> Result<(), String> {
    for frame in record.get("frames")?.items()? {
        frame.text("name")?;
        frame.text("filename")?;
        frame.size("line")?;
    }
    Ok(())
}

impl View {
    fn add_segment(&mut self, segment: &Value) -> Result<(), String> {
        let (address, size) = (segment.size("address")?, segment.size("total_size")?);
        let mut at = address;
        let (mut allocated, mut active, mut requested) = (0, 0, 0);
        for block in segment.get("blocks")?.items()? {
            let (block_size, request) = (block.size("size")?, block.size("requested_size")?);
            if block.int("address")? != at || block_size == 0 || request > block_size {
                return Err(format!("blocks do not tile at {at:#x}"));
            }
            match block.text("state")? {
                "inactive" => {}
                state @ ("active_allocated" | "active_pending_free") => {
                    let is_pending = state == "active_pending_free";
                    self.blocks.insert(at, (request, is_pending));
                    allocated += if is_pending { 0 } else { block_size };
                    active += block_size;
                    requested += request;
                }
                state => return Err(format!("state {state}")),
            }
            check_frames(block)?;
            at += block_size;
        }
        let sums = [("allocated_size", allocated), ("active_size", active)];
        for (key, sum) in sums.into_iter().chain([("requested_size", requested)]) {
            if segment.size(key)? != sum {
                return Err(format!("{key} is not {sum}"));
            }
        }
        if at != address + size || !matches!(segment.text("segment_type")?, "large" | "small") {
            return Err(format!("blocks do not tile up to {at:#x}"));
        }
        check_frames(segment)?;
        segment.get("is_expandable")?;
        segment.get("segment_pool_id")?.items()?;
        self.map(Segment { address, end: at, stream: segment.int("stream")? }, false)
    }

    fn undo(&mut self, event: &Value) -> Result<(), String> {
        let action = event.text("action")?;
        let (size, stream) = (event.size("size")?, event.int("stream")?);
        event.size("time_us")?;
        check_frames(event)?;
        if action == "oom" {
            return event.size("device_free").map(drop);
        }
        let address = event.size("addr")?;
        let range = Segment { address, end: address + size, stream };
        match action {
            "alloc" => match self.blocks.remove(&address) {
                Some((request, false)) if request == size => Ok(()),
                other => Err(format!("alloc of {other:?}")),
            },
            "free_requested" => match self.blocks.get_mut(&address) {
                Some((request, is_pending)) if *is_pending && *request == size => {
                    *is_pending = false;
                    Ok(())
                }
                other => Err(format!("free_requested of {other:?}")),
            },
            "free_completed" => {
                let mut around = self.segments.iter();
                if !around.any(|held| held.address <= address && address + size <= held.end) {
                    return Err(format!("no segment around {address:#x}"));
                }
                match self.blocks.insert(address, (size, true)) {
                    None => Ok(()),
                    Some(block) => Err(format!("free_completed, but {block:?} is there")),
                }
            }
            "segment_alloc" => self.unmap(range, false),
            "segment_map" => self.unmap(range, true),
            "segment_free" => self.map(range, false),
            "segment_unmap" => self.map(range, true),
            "snapshot" => Ok(()),
            other => Err(format!("action {other}")),
        }
    }

    fn map(&mut self, range: Segment, merges: bool) -> Result<(), String> {
        let overlaps = |held: &Segment| held.address < range.end && range.address < held.end;
        if range.address >= range.end || self.segments.iter().any(overlaps) {
            return Err(format!("{range:?} overlaps"));
        }
        let behind = self.segments.iter().position(|held| held.address > range.address);
        if !merges {
            // The viewer's `splice(-1, 0, segment)` inserts before the last element, not at the
            // end.
            let at = behind.unwrap_or(self.segments.len().saturating_sub(1));
            self.segments.insert(at, range);
            return Ok(());
        }
        let at = behind.unwrap_or(self.segments.len());
        self.segments.insert(at, range);
        if self.segments.get(at + 1).is_some_and(|next| touches(&range, next)) {
            self.segments[at].end = self.segments.remove(at + 1).end;
        }
        if at > 0 && touches(&self.segments[at - 1], &range) {
            self.segments[at - 1].end = self.segments.remove(at).end;
        }
        Ok(())
    }

    fn unmap(&mut self, range: Segment, is_part: bool) -> Result<(), String> {
        let around =
            self.segments.iter().position(|h| h.address <= range.address && range.end <= h.end);
        let at = around.ok_or(format!("no segment around {range:?}"))?;
        let held = self.segments[at];
        if !is_part && (held.address, held.end) != (range.address, range.end) {
            return Err(format!("{range:?} is a part of {held:?}"));
        }
        if let Some(block) = self.blocks.range(range.address..range.end).next() {
            return Err(format!("{block:?} is there before its segment"));
        }
        let parts =
            [Segment { end: range.address, ..held }, Segment { address: range.end, ..held }];
        let parts = parts.into_iter().filter(|part| part.address < part.end);
        self.segments.splice(at..=at, parts);
        Ok(())
    }
}

fn touches(before: &Segment, behind: &Segment) -> bool {
    before.end == behind.address && before.stream == behind.stream
}
