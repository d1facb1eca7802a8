// Shows the progress as it comes; where more than numbers changes, the server renders the page again.
const stream = new EventSource(document.getElementById("upload").dataset.events);
const progress = document.getElementById("progress");
const status = document.getElementById("status");
const waits = {
  outage: "the service is away",
  "retry-after": "the service is busy",
  settling: "looking at what the board holds",
  consent: "sign in again to go on",
};
let before = null;

stream.onmessage = ({ data }) => {
  const state = JSON.parse(data);
  if (state.ended || (before && (state.waiting_for === "consent") !== (before.waiting_for === "consent"))) {
    stream.close();
    location.reload();
    return;
  }
  before = state;
  progress.value = state.done;
  status.textContent = `${state.done} of ${state.total}` + (state.waiting_for ? `: ${waits[state.waiting_for]}` : "");
};
// The browser connects again by itself, unless the stream ended with an error: then the page is asked for.
stream.onerror = () => {
  status.textContent = "This application can't be reached: trying again…";
  if (stream.readyState === EventSource.CLOSED) retry();
};

async function retry() {
  try {
    const { status: found } = await fetch(location.href, { headers: { Accept: "application/json" } });
    if (found < 500) {
      location.reload(); // not signed in any more, or at the end
      return;
    }
  } catch {
    // still away
  }
  setTimeout(retry, 2000);
}
