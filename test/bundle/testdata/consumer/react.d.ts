// As much of @types/react as an element meets.
export as namespace React;

export interface RefObject<T> {
  current: T;
}
export function useRef<T>(initial: T | null): RefObject<T | null>;

export interface HTMLAttributes<T> {
  className?: string;
  onChange?: (event: { currentTarget: T }) => void;
}
export type DetailedHTMLProps<E, T> = E & { ref?: RefObject<T | null>; key?: string };

export namespace JSX {
  interface Element {}
  interface IntrinsicElements {}
}
