// Packs files into a tar that is never in memory whole: a Blob of small headers and the files on disk.
const BLOCK = 512;
const encoder = new TextEncoder();

const octal = (number, digits) => number.toString(8).padStart(digits, "0");

function header(name, size) {
  const block = new Uint8Array(BLOCK);
  const put = (text, at) => block.set(encoder.encode(text), at);
  put(name, 0);
  put("0000644\0" + "0000000\0" + "0000000\0", 100); // mode and owner
  put(octal(size, 11), 124);
  put(octal(0, 11), 136); // no modification time: the same files make the same archive, so that an upload can continue
  put("        ", 148);
  put("0", 156); // a regular file
  put("ustar\0" + "00", 257);
  put(octal(block.reduce((sum, byte) => sum + byte, 0), 6) + "\0", 148);
  return block;
}

const padding = (size) => new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);

export function packed(files) {
  const parts = files.flatMap((file) => [header(file.name, file.size), file, padding(file.size)]);
  return new Blob([...parts, new Uint8Array(2 * BLOCK)]);
}
